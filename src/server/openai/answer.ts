// The one writer of answers: choices of a whole answer and of a stream's events are written by the same code. An endpoint
// gives its form: the members of JSON in which it differs from the others.

import type { StreamView } from "./event-stream.ts";
import type { Job } from "./job.ts";
import { expertsJson, type TokenSpan, tokensJson, usageJson } from "./json.ts";
import { newCursor, type Output, type OutputCursor } from "./output.ts";
import type { Usage } from "./sampling-fields.ts";
import type { ServedModel } from "./served-model.ts";

export interface Answer {
  /** Writes the whole answer, when every output has ended: by stop, length or abort. */
  whole(job: Job): string;
  /** Writes the answer as a stream; called if the body's `stream` is true. */
  stream(job: Job): StreamView;
}

export type News = ReturnType<typeof newsOf>;

/** The JSON members in which an endpoint's answers differ; none begins or ends with a comma. */
export interface AnswerForm {
  readonly model: ServedModel;
  readonly usage: Usage;
  /** Whether tokens are sent as they come; else they wait until their text is certain. */
  readonly showsTokens: boolean;
  /** Members of the answer before its choices. */
  opening(job: Job, isStream: boolean): string;
  /** Members of a choice between its index and its end. */
  choice(news: News): string;
  /** Members of a whole answer behind its usage. */
  closing(job: Job): string;
  /** The finish_reason of an output that has ended. Default: its own. */
  finish?(output: Output): string;
  /** Events at the start of a stream. Default: none. */
  head?(job: Job, opening: string): string;
  /** Members of an event behind its choices, each after a comma. Default: none. */
  beside?(job: Job, isFirst: boolean): string;
}

export function answerBy(form: AnswerForm): Answer {
  const { model, usage, showsTokens } = form;
  const choiceOf = (news: News): string => {
    const { output, isWhole, cursor } = news;
    const experts = cursor.isOver ? expertsJson(output.response) : "null";
    const isTold = isWhole || experts !== "null";
    const end = cursor.isOver
      ? endOf(output, model, form.finish?.(output))
      : `"finish_reason":null,"stop_reason":null`;
    return `{"index":${output.index},${form.choice(news)},${end}${isTold ? `,"routed_experts":${experts}` : ""}}`;
  };
  return {
    whole(job) {
      const choices = job.outputs.map((output) => {
        const cursor = newCursor();
        const news = newsOf(job, output, cursor);
        return choiceOf({ ...news, isWhole: true, cursor: moved(cursor, output) });
      });
      return `{${form.opening(job, false)},"choices":[${choices.join(",")}],"usage":${usageJson(job)},${form.closing(job)}}`;
    },
    stream(job) {
      const opening = `data: {${form.opening(job, true)},"choices":[`;
      let isFirst = true;
      return {
        head: () => form.head?.(job, opening) ?? "",
        delta(output, cursor) {
          const news = advanced(job, output, cursor, showsTokens);
          if (news === null) return "";
          const choice = choiceOf(news);
          const promptTokens = output.prompt.length;
          const soFar = { promptTokens, completionTokens: cursor.tokens, promptTokensCached: null };
          const counts = usage.always ? `,"usage":${usageJson(soFar)}` : "";
          const beside = form.beside?.(job, isFirst) ?? "";
          isFirst = false;
          return `${opening}${choice}]${counts}${beside}}\n\n`;
        },
        tail: () => (usage.atEnd ? `${opening}],"usage":${usageJson(job)}}\n\n` : ""),
      };
    },
  };
}

/** What of an output is new since the cursor, or all of it. `span`: its tokens; null: none. */
function newsOf(job: Job, output: Output, cursor: OutputCursor) {
  const { pieces } = output;
  const isFirst = cursor.tokens === 0 && cursor.pieces === 0;
  return {
    job,
    output,
    cursor,
    isFirst,
    isWhole: false as boolean,
    span: spanOf(output, cursor.tokens),
    text: (isFirst ? pieces : pieces.slice(cursor.pieces)).join(""),
  };
}

/** Moves the cursor on; null: nothing to write. A parsed message comes whole: its parser may take parts back. */
export function advanced(
  job: Job,
  output: Output,
  cursor: OutputCursor,
  showsTokens: boolean,
): News | null {
  const isParsed = (job.work.parse ?? null) !== null;
  if (isParsed && output.message === null) return null;
  const news = newsOf(job, output, cursor);
  const hasTokens = news.span !== null && showsTokens;
  if (news.text === "" && output.finish === null && !hasTokens) return null;
  moved(cursor, output);
  return news;
}

/** A cursor at the end of the output so far. */
export function moved(cursor: OutputCursor, output: Output): OutputCursor {
  cursor.tokens = output.tokens;
  cursor.pieces = output.pieces.length;
  cursor.isOver = output.finish !== null;
  return cursor;
}

/** The end of a choice: its finish and stop reasons and its weight spans. `finish` replaces the output's own reason. */
export function endOf(
  output: Output,
  of: Pick<ServedModel, "version">,
  finish = `${output.finish}`,
): string {
  const versions = JSON.stringify(output.weightSpans(of.version));
  return `"finish_reason":"${finish}","stop_reason":${JSON.stringify(output.stopReason)},"weight_versions":${versions}`;
}

export function spanOf({ response, tokens: to }: Output, from = 0): TokenSpan | null {
  return to <= from ? null : { response, from, to };
}

export function idsOf(span: TokenSpan | null): string {
  return span === null ? "[]" : tokensJson(span);
}

export function promptIds({ prompt }: Pick<Output, "prompt">): string {
  return `[${prompt.join(",")}]`;
}

export function escaped(written: string): string {
  return JSON.stringify(written).slice(1, -1);
}
