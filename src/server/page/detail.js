// One response: its text as it is generated, its chunks, and its tokens with their probabilities and drafts.

const TEXT_MAX = 400_000;
const TEXT_MS = 250;
const TOKENS_SHOWN = 400;
const STRETCHES_SHOWN = 12;
let followed = null;
/** Number of the reading of a text that is under way: an earlier one ends. */
let reading = 0;
/** The server's last answer about it, and what of that is drawn. */
let detail = null;
let detailKey = "";
/** null: the last tokens, as they come. */
let tokensFrom = null;
let tokenAt = -1;

function follow(id) {
  followed = id;
  isMapDirty = true;
  $("text").classList.remove("empty");
  $("text").textContent = "";
  $("tokens").replaceChildren();
  $("chunks").replaceChildren();
  $("chunk-list").replaceChildren();
  $("chunk-facts").textContent = "";
  $("token").textContent = "";
  $("pages").hidden = true;
  detailKey = "";
  tokensFrom = null;
  tokenAt = -1;
  void loadText(id);
  drawDetail(id).catch(() => {});
}

/** Its text: pages of it until it has ended, then no more. */
async function loadText(id) {
  const box = $("text");
  reading += 1;
  const own = reading;
  try {
    for (let from = 0, all = "", restarts = 0; own === reading; ) {
      const page = await json(`foretoken/responses/${id}`, { from, text: true });
      if (own !== reading) return;
      if (page.restarts !== restarts) {
        restarts = page.restarts;
        if (from > 0) {
          [from, all] = [0, ""];
          continue;
        }
      }
      const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 24;
      all = (all + page.text).slice(-TEXT_MAX);
      box.textContent = all;
      if (isAtEnd && page.finish_reason === null) box.scrollTop = box.scrollHeight;
      from += page.token_ids.length;
      if (from < page.length) continue;
      if (page.finish_reason !== null) return;
      await new Promise((resolve) => setTimeout(resolve, TEXT_MS));
    }
  } catch ({ message }) {
    if (own !== reading) return;
    box.classList.add("empty");
    box.textContent = message;
  }
}

/** Which chunks ran where, and a page of tokens: the last ones, until another page is chosen. */
async function drawDetail(id) {
  const length = responses.get(id)?.length ?? 0;
  const from = tokensFrom ?? Math.max(0, length - TOKENS_SHOWN);
  const next = await json(`foretoken/responses/${id}`, { from });
  if (id !== followed) return;
  detail = next;
  const key = `${id} ${from} ${detail.length} ${detail.chunks.length} ${detail.status}`;
  if (key === detailKey) return;
  detailKey = key;
  drawChunks();
  drawTokens();
}

/** Neighbouring chunks of one worker and epoch are one stretch. */
function stretches() {
  const all = [];
  for (const {
    worker,
    name,
    offset,
    tokens,
    weight_epoch,
    drafted_tokens,
    accepted_tokens,
  } of detail.chunks) {
    const last = all.at(-1);
    const isSame = last !== undefined && last.worker === worker && last.epoch === weight_epoch;
    const one = isSame
      ? last
      : {
          worker,
          name,
          offset,
          tokens: 0,
          epoch: weight_epoch,
          chunks: 0,
          drafted: null,
          accepted: 0,
        };
    if (!isSame) all.push(one);
    one.tokens += tokens;
    one.chunks += 1;
    if (drafted_tokens !== null) one.drafted = (one.drafted ?? 0) + drafted_tokens;
    one.accepted += accepted_tokens ?? 0;
  }
  return all;
}

function drawChunks() {
  const all = stretches();
  $("chunks").replaceChildren(
    ...all.map(({ tokens, worker }) => {
      const bar = document.createElement("i");
      bar.style.flexGrow = String(Math.max(1, tokens));
      bar.style.background = hue(worker);
      return bar;
    }),
  );
  const moves = Math.max(0, all.length - 1);
  write(
    $("chunk-facts"),
    `${number(detail.prompt_tokens)} prompt tokens; ${detail.chunks.length} chunk${detail.chunks.length === 1 ? "" : "s"}, ${moves} move${moves === 1 ? "" : "s"}`,
  );
  const shown = all
    .slice(-STRETCHES_SHOWN)
    .map(({ worker, name, offset, tokens, epoch, chunks, drafted, accepted }) => {
      const item = document.createElement("li");
      const dot = document.createElement("i");
      dot.style.background = hue(worker);
      const drafts =
        (drafted ?? 0) === 0
          ? ""
          : `, ${number(accepted)} of ${number(drafted)} draft tokens accepted`;
      const count = chunks === 1 ? "" : ` in ${chunks} chunks`;
      item.append(
        dot,
        `tokens ${offset} to ${offset + tokens} on ${name}${count}, weight epoch ${epoch}${drafts}`,
      );
      return item;
    });
  $("chunk-list").replaceChildren(...shown);
}

function drawTokens() {
  const { from, texts, accepted, refused, logprobs, length } = detail;
  $("earlier").disabled = from === 0;
  $("later").disabled = from + texts.length >= length;
  $("pages").hidden = length === 0;
  write($("page"), `tokens ${number(from)} to ${number(from + texts.length)} of ${number(length)}`);
  $("tokens").replaceChildren(
    ...texts.map((piece, i) => {
      const token = document.createElement("span");
      token.textContent = piece;
      token.style.setProperty("--doubt", `${Math.round(60 * (1 - Math.exp(logprobs[i])))}%`);
      if (accepted[i]) token.className = "accepted";
      else if (refused[i] > 0) token.className = "refused";
      return token;
    }),
  );
}

function describeToken(i) {
  const { from, token_ids, logprobs, accepted, refused, chunks } = detail;
  const at = from + i;
  const chunk = chunks.findLast(({ offset }) => offset <= at);
  const origin =
    accepted[i] === null
      ? ""
      : accepted[i]
        ? ", an accepted draft token"
        : refused[i] > 0
          ? `, drawn where ${refused[i]} draft token${refused[i] === 1 ? " was" : "s were"} refused`
          : ", drawn without a draft";
  write(
    $("token"),
    `token ${at}, id ${token_ids[i]}: probability ${Math.exp(logprobs[i]).toFixed(3)}, logprob ${logprobs[i].toFixed(2)}, ${chunk?.name ?? ""}${origin}`,
  );
  for (const one of $("tokens").querySelectorAll(".here")) one.classList.remove("here");
  $("tokens").children[i].classList.add("here");
  $("tokens").children[i].scrollIntoView({ block: "nearest" });
  tokenAt = i;
}

function turnPage(by) {
  const to = Math.max(0, detail.from + by * TOKENS_SHOWN);
  tokensFrom = to + TOKENS_SHOWN >= detail.length ? null : to;
  if (followed !== null) drawDetail(followed).catch(() => {});
}

$("tokens").tabIndex = 0;
$("earlier").onclick = () => turnPage(-1);
$("later").onclick = () => turnPage(1);
$("tokens").onclick = ({ target }) => {
  const i = [...$("tokens").children].indexOf(target);
  if (i >= 0) describeToken(i);
};
$("tokens").onkeydown = (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const last = $("tokens").children.length - 1;
  if (step === undefined || last < 0) return;
  event.preventDefault();
  describeToken(Math.max(0, Math.min(last, tokenAt + step)));
};
