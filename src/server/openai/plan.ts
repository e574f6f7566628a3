// The second step of a request: parsed fields become generations. Prompts are encoded or rendered, parameters are checked
// against the model and the engines, and the request gets its place: adapter, group, session.

import { present } from "../../core/base/assert.ts";
import type { Later } from "../../core/base/clock.ts";
import { AppError } from "../../core/base/errors.ts";
import { PROMPT_FIELDS } from "../../core/request/request.ts";
import type { Chat, EncodeOptions, Encoder } from "../../text/text.ts";
import type { EngineCalls } from "../engine-calls.ts";
import { type Exchange, invalid } from "../route.ts";
import type { GenerationSpec, Sidecar } from "../sidecar.ts";
import type { Trajectories } from "../trajectories/trajectories.ts";
import type { Answer } from "./answer.ts";
import { continued, type EndsOfTurns } from "./continuation.ts";
import type { TokenList } from "./fields.ts";
import type { Work } from "./job.ts";
import { type Origin, originOf } from "./origin.ts";
import type { ChatRenderer, RenderedChat } from "./rendering.ts";
import type { RequestJournals } from "./request-journals.ts";
import {
  type CommonFields,
  type Drawing,
  type DrawingPart,
  drawingOf,
  type OpenAiFields,
  type SamplingFields,
} from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";
import { constraintsOf, parseTools } from "./tool-calls.ts";

export interface ParsedRequest {
  /** Fields that apply to the whole request, under vLLM's names. */
  readonly fields: Partial<CommonFields & OpenAiFields>;
  /** Parameters: one part for all prompts, or one for each. */
  readonly parts: readonly RequestPart[];
  readonly prompts: Prompts;
  /** The chat whose responses are parsed for tool calls, and the client's tool_choice. Default: none are. */
  readonly tools?: { readonly chat: Chat; readonly choice: unknown } | null;
  /** Whether the answer has the text of a chat's prompt. Default: no. */
  readonly showsPrompt?: boolean;
  readonly wantsText: boolean;
  /** The client's name for the responses of each prompt. Default: only the whole request has a name. */
  readonly names?: readonly string[] | undefined;
  /** The field that asks for the prompt's text in the answer; absent: none does. */
  readonly textField?: string | undefined;
  /** Makes the answer's writer. `promptText` null: it was not requested, or is not known. */
  readonly answer: (model: ServedModel, promptText: string | null) => Answer;
}

export interface RequestPart extends DrawingPart {
  readonly params: SamplingFields;
  /** Prefix of the parameters' names in messages. Default: none. */
  readonly at?: string;
  /** The tool whose output the prompt ends with; null or absent: none, or not known. */
  readonly tool?: string | null;
  /** Whether a `tokensMax` beyond the context is reduced instead of refused. */
  readonly clamps?: boolean;
  /** The model that this part asks for. Default: the request's. */
  readonly model?: string | null | undefined;
  readonly salt?: string | null | undefined;
}

/** Sources of the prompts' tokens. `names`: their names in errors. */
export type Prompts =
  | {
      readonly kind: "tokens";
      readonly lists: readonly TokenList[];
      readonly names: (index: number) => string;
    }
  | {
      readonly kind: "texts";
      readonly texts: readonly string[];
      readonly names: (index: number) => string;
      readonly addSpecial: boolean;
    }
  | { readonly kind: "chat"; readonly chat: Chat; readonly addSpecial: boolean };

export interface DataPlaneLimits {
  /** Limit of responses to one request, over all its prompts. */
  readonly responsesMax: number;
  /** Time after which a streaming client that reads nothing is dropped. */
  readonly stallMsMax: number;
  /** Time for which responses without a client continue, and finished ones are kept. */
  readonly graceMs: number;
  /** Limit of jobs without a client; one more ends the oldest. */
  readonly leftMax: number;
  /** Limit of jobs without a client, prompts and texts included. */
  readonly keptBytesMax: number;
}

export interface PlaneParts {
  readonly model: ServedModel;
  readonly sidecar: Sidecar;
  readonly encoder: Encoder;
  readonly chats: ChatRenderer;
  /** Calls of engines; null: no engine has routes of its own. */
  readonly engines: EngineCalls | null;
  /** Records the turns of sessions; null: nothing does. */
  readonly trajectories: Trajectories | null;
  /** Keeps requests with an id beyond the end of the process; null: nothing does. */
  readonly journals: RequestJournals | null;
  /** Called with the weights that a request expects, when nothing can refuse it but the sidecar. */
  readonly expected: (hint: Pick<Origin, "version" | "salt"> & { readonly by: string }) => void;
  /** Called with an error that ended one request and is not the client's. */
  readonly failed: (error: unknown) => void;
  readonly sessionHeaders: readonly string[];
  /** Whether engines draft in a way that lets a seed draw other tokens each time. */
  readonly variesSeeds: () => boolean;
  readonly later: Later;
  readonly limits: DataPlaneLimits;
}

export interface Plan extends Work {
  readonly isStream: boolean;
  /** The body's own id, which a retry has too; in the answer the X-Request-Id header goes before it, as in vLLM. */
  readonly requestId: string | null;
  /** Parameters of the first prompt, with what an engine has added. */
  readonly params: SamplingFields;
  readonly answer: Answer;
}

/** A part's checked parameters, and its adapter and origin. */
interface Drawn {
  readonly part: RequestPart;
  readonly drawing: Drawing;
  readonly adapter: string | null;
  readonly origin: Origin;
}

const NO_TEXT =
  "needs the model's tokenizer.json, which is not on this machine: send stop_token_ids, or give --tokenizer DIR";

export class Planner {
  readonly #parts: PlaneParts;

  constructor(parts: PlaneParts) {
    this.#parts = parts;
  }

  /** Makes generations of a request. @throws InvalidFieldError; AppError not_found, context_length_exceeded, as Encoder, EngineCalls. */
  async plan(request: ParsedRequest, exchange: Exchange): Promise<Plan> {
    const { model, expected, limits, chats } = this.#parts;
    const { fields, prompts, tools = null, answer, textField, names, wantsText } = request;
    for (const part of request.parts) model.adapterOf(part.model ?? fields.model);
    if (fields.stream_options && fields.stream !== true) {
      throw invalid("stream_options", "is set, but stream is not true");
    }
    if (textField && !model.hasText) throw invalid(textField, "needs the prompt's text");
    const encoding = this.#encoding(request, exchange);
    // What the engine asks of the response is checked with the rest.
    const early = tools && (await chats.render(tools.chat, encoding));
    const parts = request.parts.map((part) => withTools(part, early, tools?.choice));
    const drawn = parts.map((part) => this.#drawn(part, fields, exchange));
    const of = (index: number) => present(drawn[index] ?? drawn[0], "each prompt has parameters");
    const written = await this.#written(prompts, early, encoding);
    const cut = written.prompts.map((tokens, i) => this.#cut(tokens, of(i), fields));
    if (prompts.kind === "chat" && cut[0]?.length === 0) {
      throw invalid("messages", "make a prompt without tokens");
    }
    const count = cut.reduce((sum, _, i) => sum + of(i).drawing.n, 0);
    if (count > limits.responsesMax) {
      const asks = `asks for ${count} responses to ${cut.length} prompts`;
      const problem = `${asks}, more than ${limits.responsesMax} in a request`;
      throw invalid(`${of(0).part.at ?? ""}n`, problem);
    }
    const stops = cut.map((_, i) => of(i).drawing.stops);
    const hasStrings = stops.some(({ strings }) => strings.length > 0);
    if (hasStrings && !model.hasText) throw invalid("stop", NO_TEXT);
    let specs = cut.map((prompt, i) => this.#specOf(prompt, of(i), fields));
    const { chatText } = written;
    const promptText = request.showsPrompt && chatText ? await chatText() : null;
    const isCut = cut[0] !== written.prompts[0];
    const exact = chatText && !isCut ? await this.#continued(specs, chatText, encoding) : null;
    if (exact !== null) specs = [this.#specOf(exact, of(0), fields)];
    // A request that is refused says nothing about weights.
    for (const { origin } of drawn) expected({ ...origin, by: `request ${exchange.id}` });
    return {
      specs,
      stops,
      names,
      text: (wantsText || hasStrings) && model.hasText ? model.text : null,
      parse: this.#parserOf(request),
      isStream: fields.stream ?? false,
      requestId: fields.request_id ?? null,
      params: of(0).part.params,
      answer: answer(model, promptText),
    };
  }

  /** Options of encoding. A prompt that is cut afterwards may be longer than the context. */
  #encoding({ prompts, fields }: ParsedRequest, { signal }: Exchange): EncodeOptions {
    const isCut = (fields.truncate_prompt_tokens ?? null) !== null;
    const tokensMax = isCut ? null : this.#parts.model.contextTokens;
    return { addSpecial: prompts.kind !== "tokens" && prompts.addSpecial, tokensMax, signal };
  }

  #drawn(part: RequestPart, fields: ParsedRequest["fields"], exchange: Exchange): Drawn {
    const { model, sidecar, sessionHeaders } = this.#parts;
    const { params, at = "" } = part;
    const report = PROMPT_FIELDS.find((name) => (Object(params)[name] ?? null) !== null);
    if (report !== undefined && fields.stream === true) {
      throw invalid(`${at}${report}`, "is set, but a stream does not report on its prompt");
    }
    const extraArgs = { ...part.extraArgs };
    const named = part.salt === undefined ? fields : { ...fields, cache_salt: part.salt };
    const origin = originOf(exchange.headers, named, extraArgs, sessionHeaders);
    const { text, hasText, eosTokenIds } = model;
    const { vocabularySize } = text;
    const tokensIn = (word: string) =>
      hasText ? text.encode(word, { addSpecial: false }).length : null;
    const { reportsExperts } = sidecar;
    const context = { vocabularySize, eosTokenIds, reportsExperts, tokensIn, at };
    const drawing = drawingOf(params, { ...part, extraArgs }, context);
    return { part, drawing, adapter: model.adapterOf(part.model ?? fields.model), origin };
  }

  async #written(
    prompts: Prompts,
    early: RenderedChat | null,
    encoding: EncodeOptions,
  ): Promise<{ prompts: readonly Int32Array[]; chatText: (() => Promise<string>) | null }> {
    const { model, encoder, chats } = this.#parts;
    if (prompts.kind === "tokens") {
      const { lists, names } = prompts;
      const checked = lists.map((list, i) => model.promptOf(list, names(i)));
      return { prompts: checked, chatText: null };
    }
    if (prompts.kind === "texts") {
      const encoded = await encoder.encode(prompts.texts, encoding);
      const empty = encoded.findIndex((tokens) => tokens.length === 0);
      if (empty >= 0) throw invalid(prompts.names(empty), "holds no tokens");
      return { prompts: encoded, chatText: null };
    }
    const { tokens, text } = early ?? (await chats.render(prompts.chat, encoding));
    return {
      prompts: [tokens],
      chatText: async () => text ?? encoder.decode(tokens, encoding.signal),
    };
  }

  #cut(tokens: Int32Array, { part }: Drawn, fields: ParsedRequest["fields"]): Int32Array {
    const { truncate_prompt_tokens: keep = null, truncation_side: side } = fields;
    const { contextTokens } = this.#parts.model;
    const room = (contextTokens ?? Number.POSITIVE_INFINITY) - (part.tokensMax ?? 0);
    const most = keep === -1 ? Math.max(0, room) : (keep ?? tokens.length);
    if (tokens.length <= most) return tokens;
    return side === "right" ? tokens.slice(0, most) : tokens.slice(tokens.length - most);
  }

  #specOf(
    prompt: Int32Array,
    { part, drawing, adapter, origin }: Drawn,
    fields: ParsedRequest["fields"],
  ): GenerationSpec {
    const { contextTokens } = this.#parts.model;
    const { seeded, n } = drawing;
    const { group, session, salt } = origin;
    const room = (contextTokens ?? 0) - prompt.length;
    if (room < 1 && contextTokens !== null) {
      // vLLM's words (renderers/params.py): NeMo Gym and verifiers search for "maximum context length".
      const sentences = [
        `This model's maximum context length is ${contextTokens} tokens.`,
        `However, your prompt contains ${prompt.length} input tokens, which leaves no room for output tokens.`,
        "Please reduce the length of the input prompt.",
      ];
      throw new AppError("context_length_exceeded", sentences.join(" "));
    }
    const most = Math.max(1, room);
    const wanted = part.tokensMax ?? most;
    const sampling = {
      ...drawing.sampling,
      ...(adapter !== null && { adapter }),
      ...(salt !== null && { cacheSalt: salt }),
      tokensMax: part.clamps === true ? Math.min(wanted, most) : wanted,
    };
    const { tool = null } = part;
    const priority = fields.priority ?? 0;
    return { prompt, n, sampling, seeded, group, session, tool, priority };
  }

  /** The prompt with the session's recorded tokens; null: it has them already, or the chat begins with none of them. */
  async #continued(
    [spec]: readonly GenerationSpec[],
    text: () => Promise<string>,
    encoding: EncodeOptions,
  ): Promise<Int32Array | null> {
    const { encoder } = this.#parts;
    if (spec === undefined) return null;
    const chat = {
      prompt: spec.prompt,
      text,
      decode: (tokens: Int32Array) => encoder.decode(tokens, encoding.signal),
      encode: async (news: string) => {
        const [tokens] = await encoder.encode([news], { ...encoding, addSpecial: false });
        return tokens ?? new Int32Array(0);
      },
    };
    return await continued(chat, this.#textsBefore(spec));
  }

  /** Texts that the next prompt of a session may begin with: of each of its sequences, the newest first. */
  #textsBefore(spec: GenerationSpec): readonly EndsOfTurns[] {
    const { trajectories, sidecar } = this.#parts;
    const { session = null, group } = spec;
    if (session !== null && trajectories !== null) {
      return trajectories.textsBefore({ name: session, group });
    }
    const text = sidecar.turnBefore(spec);
    return text === null ? [] : [[() => text]];
  }

  /** Without a tokenizer here, an engine makes the text at the end of the response. */
  #parserOf({ tools = null, wantsText }: ParsedRequest): NonNullable<Work["parse"]> | null {
    const { engines, encoder, model } = this.#parts;
    if (tools !== null) {
      const rendering = present(engines, "an engine has rendered the chat");
      return async (output) => await parseTools(rendering, output, tools.chat);
    }
    if (model.hasText || !wantsText) return null;
    return async (output) => {
      const tokens = output.textTokens();
      const { signal } = new AbortController();
      const content = tokens.length === 0 ? "" : await encoder.decode(tokens, signal);
      return { content, reasoning: null, toolCalls: [] };
    };
  }
}

/** The parameters with what the engine that renders the chat asks of the response. @throws InvalidFieldError. */
function withTools(part: RequestPart, rendered: RenderedChat | null, choice: unknown): RequestPart {
  if (rendered === null) return part;
  const { structured, stopTokenIds, beside } = constraintsOf(rendered.reply, choice);
  const stops = [...(part.params.stop_token_ids ?? []), ...stopTokenIds];
  const params = {
    ...part.params,
    stop_token_ids: [...new Set(stops)],
    ...(structured === null ? {} : { structured_outputs: structured }),
  };
  return { ...part, params, beside };
}
