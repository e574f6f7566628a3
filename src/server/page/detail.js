// @ts-check
// One response: its text as it is generated, its chunks, and its tokens with their probabilities and drafts.

const TEXT_MAX = 400_000;
const TEXT_MS = 250;
const TOKENS_SHOWN = 400;
const STRETCHES_SHOWN = 12;
/** @type {number | null} */
let followed = null;
/** Number of the reading of a text that is under way: an earlier one ends. */
let reading = 0;
/** The server's last answer about it, and what of that is drawn. @type {Detail | null} */
let detail = null;
let detailKey = "";
/** null: the last tokens, as they come. @type {number | null} */
let tokensFrom = null;
let tokenAt = -1;

/** @param {number} id */
function follow(id) {
  followed = id;
  isMapDirty = true;
  $("text").classList.remove("empty");
  for (const part of ["text", "tokens", "chunks", "chunk-list", "chunk-facts", "token", "facts"]) {
    $(part).replaceChildren();
  }
  $("pages").hidden = true;
  detailKey = "";
  tokensFrom = null;
  tokenAt = -1;
  void loadText(id);
  drawDetail(id).catch(() => {});
}

/**
 * @param {number} id
 * @param {number} from
 * @returns {Promise<Detail>}
 */
const detailOf = (id, from) => json(`foretoken/responses/${id}`, { from });

/**
 * Its text: pages of it until it has ended, then no more.
 * @param {number} id
 */
async function loadText(id) {
  const box = $("text");
  reading += 1;
  const own = reading;
  try {
    for (let from = 0, all = "", restarts = 0; own === reading; ) {
      const page = await detailOf(id, from);
      if (own !== reading) return;
      if (page.restarts !== restarts) {
        restarts = page.restarts;
        if (from > 0) {
          [from, all] = [0, ""];
          continue;
        }
      }
      const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
      all = (all + page.texts.join("")).slice(-TEXT_MAX);
      box.textContent = all;
      if (isAtEnd && page.finish_reason === null) box.scrollTop = box.scrollHeight;
      from += page.token_ids.length;
      if (from < page.length) continue;
      if (page.finish_reason !== null) return;
      await new Promise((resolve) => setTimeout(resolve, TEXT_MS));
    }
  } catch (error) {
    if (own !== reading) return;
    box.classList.add("empty");
    box.textContent = textOf(error);
  }
}

/**
 * Which chunks ran where, and a page of tokens: the last ones, until another page is chosen.
 * @param {number} id
 */
async function drawDetail(id) {
  const length = responses.get(id)?.length ?? 0;
  const from = tokensFrom ?? Math.max(0, length - TOKENS_SHOWN);
  const next = await detailOf(id, from);
  if (id !== followed) return;
  const key = `${id} ${from} ${next.length} ${next.chunks.length} ${next.status}`;
  detail = next;
  if (key === detailKey) return;
  detailKey = key;
  write($("who"), `Response ${next.index} of ${nameOf(next.group)}`);
  const state = next.finish_reason ?? (next.length > 0 ? "not finished" : "not begun");
  write($("facts"), `request ${id} · ${number(next.length)} tokens · ${state}`);
  drawChunks(next);
  drawTokens(next);
}

/**
 * Neighbouring chunks of one worker and epoch are one stretch.
 * @param {Detail} detail
 */
function stretches({ chunks }) {
  const begun = (/** @type {Detail["chunks"][number]} */ chunk) => {
    const { worker, name, offset, weight_epoch: epoch } = chunk;
    return { worker, name, offset, epoch, tokens: 0, chunks: 0, drafted: 0, accepted: 0 };
  };
  /** @type {ReturnType<typeof begun>[]} */
  const all = [];
  for (const chunk of chunks) {
    const { worker, tokens, weight_epoch: epoch, ...drafts } = chunk;
    const last = all.at(-1);
    const one = last?.worker === worker && last.epoch === epoch ? last : begun(chunk);
    if (one !== last) all.push(one);
    one.tokens += tokens;
    one.chunks += 1;
    one.drafted += drafts.drafted_tokens ?? 0;
    one.accepted += drafts.accepted_tokens ?? 0;
  }
  return all;
}

/** @type {(count: number, noun: string) => string} */
const counted = (count, noun) => `${number(count)} ${noun}${count === 1 ? "" : "s"}`;

/** @param {Detail} detail */
function drawChunks(detail) {
  const all = stretches(detail);
  const colored = (/** @type {number} */ worker) => {
    const mark = element("i");
    mark.style.background = hue(worker);
    return mark;
  };
  $("chunks").replaceChildren(
    ...all.map(({ tokens, worker }) => {
      const bar = colored(worker);
      bar.style.flexGrow = String(Math.max(1, tokens));
      return bar;
    }),
  );
  const moves = counted(Math.max(0, all.length - 1), "move");
  write(
    $("chunk-facts"),
    `${number(detail.prompt_tokens)} prompt tokens; ${counted(detail.chunks.length, "chunk")}, ${moves}`,
  );
  const shown = all.slice(-STRETCHES_SHOWN).map((one) => {
    const { worker, name, offset, tokens, epoch, chunks, drafted, accepted } = one;
    const drafts =
      drafted === 0 ? "" : `, ${number(accepted)} of ${number(drafted)} draft tokens accepted`;
    const count = chunks === 1 ? "" : ` in ${chunks} chunks`;
    const text = `tokens ${offset} to ${offset + tokens} on ${name}${count}, weight epoch ${epoch}${drafts}`;
    return element("li", colored(worker), text);
  });
  $("chunk-list").replaceChildren(...shown);
}

/** @param {Detail} detail */
function drawTokens({ from, texts, accepted, refused, logprobs, length }) {
  elementOf("earlier", HTMLButtonElement).disabled = from === 0;
  elementOf("later", HTMLButtonElement).disabled = from + texts.length >= length;
  $("pages").hidden = length === 0;
  write($("page"), `tokens ${number(from)} to ${number(from + texts.length)} of ${number(length)}`);
  $("tokens").replaceChildren(
    ...texts.map((piece, i) => {
      const token = element("span", piece);
      token.style.setProperty("--doubt", `${Math.round(60 * (1 - Math.exp(logprobs[i] ?? 0)))}%`);
      if (accepted[i]) token.className = "accepted";
      else if ((refused[i] ?? 0) > 0) token.className = "refused";
      return token;
    }),
  );
}

/**
 * @param {Detail} detail
 * @param {number} i
 */
function originOf({ accepted, refused }, i) {
  const isAccepted = accepted[i] ?? null;
  if (isAccepted === null) return "";
  if (isAccepted) return ", an accepted draft token";
  const count = refused[i] ?? 0;
  if (count === 0) return ", drawn without a draft";
  return `, drawn where ${count} draft token${count === 1 ? " was" : "s were"} refused`;
}

/** @param {number} i */
function describeToken(i) {
  const shown = $("tokens").children[i];
  if (detail === null || shown === undefined) return;
  const { from, token_ids, logprobs, chunks } = detail;
  const at = from + i;
  const chunk = chunks.findLast(({ offset }) => offset <= at);
  const logprob = logprobs[i] ?? 0;
  write(
    $("token"),
    `token ${at}, id ${token_ids[i]}: probability ${Math.exp(logprob).toFixed(3)}, logprob ${logprob.toFixed(2)}, ${chunk?.name ?? ""}${originOf(detail, i)}`,
  );
  for (const one of $("tokens").querySelectorAll(".here")) one.classList.remove("here");
  shown.classList.add("here");
  shown.scrollIntoView({ block: "nearest" });
  tokenAt = i;
}

/** @param {-1 | 1} by */
function turnPage(by) {
  if (detail === null || followed === null) return;
  const to = Math.max(0, detail.from + by * TOKENS_SHOWN);
  tokensFrom = to + TOKENS_SHOWN >= detail.length ? null : to;
  drawDetail(followed).catch(() => {});
}

$("tokens").tabIndex = 0;
$("earlier").onclick = () => turnPage(-1);
$("later").onclick = () => turnPage(1);
$("tokens").onclick = ({ target }) => {
  if (!(target instanceof Element)) return;
  const i = [...$("tokens").children].indexOf(target);
  if (i >= 0) describeToken(i);
};
$("tokens").onkeydown = (event) => {
  const step = stepOf(event);
  const last = $("tokens").children.length - 1;
  if (step === 0 || last < 0) return;
  event.preventDefault();
  describeToken(Math.max(0, Math.min(last, tokenAt + step)));
};
