// A thread that encodes with the tokenizer of a Hugging Face directory.

import { serveEncoder } from "./encoder.ts";
import { type HuggingFaceOpening, openHuggingFaceText } from "./hugging-face.ts";

serveEncoder((opening: HuggingFaceOpening) => openHuggingFaceText(...opening));
