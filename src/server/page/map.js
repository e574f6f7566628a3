// @ts-check
// The map of groups and their responses: a column of cells for each group, as pixels of one image, and the group's
// length estimate above them. A click or the keys choose a response.

/** @type {number | null} */
let selected = null;
/** @type {ReturnType<typeof layOut> | null} */
let grid = null;
let isMapDirty = true;

/** Columns of groups in bands; cells as large as all groups leave room for. */
function layOut() {
  const shown = [...groups.values()];
  const rows = Math.max(
    1,
    shown.reduce((most, group) => Math.max(most, group.responses.length), 1),
  );
  const room = Math.max(40, $("map").parentElement?.clientWidth ?? 0);
  const cells = shown.length * rows;
  const wanted = Math.floor(Math.sqrt((room * 440) / Math.max(1, cells)));
  const size = Math.max(
    4,
    Math.min(26, wanted, Math.max(9, Math.floor(room / Math.max(1, shown.length)))),
  );
  const columns = Math.max(1, Math.floor(room / size));
  const bands = Math.max(1, Math.ceil(shown.length / columns));
  const above = Math.max(2, Math.round(size / 3)) + 1;
  const band = above + rows * size + Math.max(4, Math.round(size / 2));
  return { shown, rows, size, columns, above, band, width: columns * size, height: bands * band };
}

/** @param {{ estimate: number | null }} group */
const estimateOf = ({ estimate }) => estimate ?? 0;

/**
 * Cells are written as pixels: one call to the canvas, however many there are.
 * @param {ReturnType<typeof colorsOf>} colors
 */
function drawMap(colors) {
  const laid = layOut();
  grid = laid;
  const { shown, size, columns, above, band } = laid;
  const canvas = elementOf("map", HTMLCanvasElement);
  const context = canvas.getContext("2d");
  if (context === null) return;
  const ratio = Math.max(1, Math.round(window.devicePixelRatio || 1));
  const [width, height] = [laid.width * ratio, Math.max(60, laid.height) * ratio];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  canvas.style.width = `${laid.width}px`;
  canvas.style.height = `${height / ratio}px`;
  let longest = 1;
  for (const { length } of responses.values()) if (length > longest) longest = length;
  for (const group of shown) longest = Math.max(longest, estimateOf(group));
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const side = size * ratio;
  const gap = size > 5 ? ratio : size > 4 ? 1 : 0;
  const ramp = Array.from({ length: 65 }, (_, i) => pack(mix(colors.cell0, colors.cell1, i / 64)));
  const shadeOf = (/** @type {number} */ length) =>
    ramp[Math.round(64 * Math.sqrt(length / longest))] ?? 0;
  const [edge, line, ink] = [pack(rgb(colors.edge)), pack(rgb(colors.line)), pack(rgb(colors.ink))];
  /** @type {(x: number, y: number, w: number, h: number, color: number) => void} */
  const fill = (x, y, w, h, color) => {
    for (let start = y * width + x, row = 0; row < h; row += 1, start += width) {
      for (let at = start; at < start + w; at += 1) pixels[at] = color;
    }
  };
  for (const [i, group] of shown.entries()) {
    const left = (i % columns) * side;
    const top = Math.floor(i / columns) * band * ratio;
    fill(
      left,
      top,
      side - gap,
      (above - 1) * ratio,
      group.estimate === null ? line : shadeOf(group.estimate),
    );
    for (const [k, { id, length, finish }] of group.responses.entries()) {
      const [x, y, w] = [left, top + above * ratio + k * side, side - gap];
      const shade = shadeOf(length);
      const isHere = id === followed || id === selected;
      const border = isHere ? ink : finish === null ? (length > 0 ? edge : line) : null;
      if (border === null) fill(x, y, w, w, shade);
      else {
        const thick = Math.max(1, Math.min(2 * ratio, Math.floor(w / 4)));
        fill(x, y, w, w, border);
        fill(
          x + thick,
          y + thick,
          w - 2 * thick,
          w - 2 * thick,
          length > 0 || finish !== null ? shade : shadeOf(0),
        );
      }
    }
  }
  context.putImageData(image, 0, 0);
  if (shown.length > 0) {
    if ($("hint").textContent === "No requests yet.") {
      write($("hint"), "A click on a cell, or Enter, follows that response.");
    }
    write($("longest"), `0 to ${number(longest)} tokens`);
  }
  $("scale").style.background =
    `linear-gradient(90deg, ${css(colors.cell0)}, ${css(colors.cell1)})`;
}

/** @param {MouseEvent} event */
function responseAt({ offsetX, offsetY }) {
  if (grid === null) return undefined;
  const { shown, size, columns, above, band } = grid;
  const column = Math.floor(offsetX / size);
  if (column >= columns) return undefined;
  const group = shown[Math.floor(offsetY / band) * columns + column];
  return group?.responses[Math.floor(((offsetY % band) - above) / size)];
}

/** @param {Cell} response */
function describe({ id, index, length, finish, group }) {
  const done = group.responses
    .filter((one) => one.finish !== null)
    .map((one) => one.length)
    .sort((a, b) => a - b);
  const median =
    finish === null && done.length > 0
      ? ` · siblings' median ${number(done[done.length >> 1] ?? 0)}`
      : "";
  const expected =
    group.estimate === null ? "" : ` · estimate of the group ${number(group.estimate)}`;
  $("hint").textContent =
    `${nameOf(group.name)}, response ${index} · request ${id} · ${number(length)} tokens · ${finish ?? "not finished"}${median}${expected}`;
}

$("map").onclick = (event) => {
  const response = responseAt(event);
  if (response === undefined) return;
  selected = response.id;
  follow(response.id);
  dueDraw();
};
$("map").onmousemove = (event) => {
  const response = responseAt(event);
  if (response !== undefined) describe(response);
};
$("map").onkeydown = (event) => {
  const [across, down] = [stepOf(event), stepOf(event, ["ArrowUp", "ArrowDown"])];
  const shown = grid?.shown ?? [];
  const current = responses.get(selected ?? -1);
  if (event.key === "Enter" && current !== undefined) follow(current.id);
  else if (across !== 0 || down !== 0) {
    const at = current === undefined ? 0 : shown.indexOf(current.group) + across;
    const group = shown[Math.max(0, Math.min(shown.length - 1, at))];
    const last = (group?.responses.length ?? 0) - 1;
    const place = current === undefined ? 0 : current.group.responses.indexOf(current) + down;
    const next = group?.responses[Math.max(0, Math.min(last, place))];
    if (next === undefined) return;
    selected = next.id;
    describe(next);
  } else return;
  event.preventDefault();
  isMapDirty = true;
  dueDraw();
};
