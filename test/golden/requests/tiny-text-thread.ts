// A thread that encodes with the tiny text.

import { serveEncoder } from "../../../src/text/encoder-job.ts";
import { TinyText } from "./tiny-text.ts";

serveEncoder(() => new TinyText());
