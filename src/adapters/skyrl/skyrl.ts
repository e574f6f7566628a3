// SkyRL's generation, beside the routes of vLLM that it uses as they are.

import { generates } from "../../server/openai/data-plane.ts";
import type { Adapter } from "../adapter.ts";
import { prepareSkyrl, skyrlRequest } from "./generate.ts";

export const SKYRL: Adapter = {
  name: "skyrl",
  data: [
    generates(
      "/skyrl/v1/generate",
      "SkyRL: a response with the tokens from which each of its tokens was drawn, packed",
      { schema: skyrlRequest, prepare: prepareSkyrl, streams: false },
    ),
  ],
  control: [],
};
