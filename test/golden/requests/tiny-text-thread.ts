// A thread that encodes with the tiny text.

import { serveEncoder } from "../../../src/text/encoder.ts";
import { TinyText } from "./tiny-text.ts";

serveEncoder(() => new TinyText());
