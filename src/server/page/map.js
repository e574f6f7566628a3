// The map of groups and their responses: a column of cells for each group, as pixels of one image, and the group's
// length estimate above them. A click or the keys choose a response.

let selected = null;
let grid = null;
let isMapDirty = true;

/** Columns of groups in bands; cells as large as all groups leave room for. */
function layOut() {
  const shown = [...groups.values()];
  const rows = Math.max(
    1,
    shown.reduce((most, group) => Math.max(most, group.responses.length), 1),
  );
  const room = Math.max(40, $("map").parentElement.clientWidth);
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

/** Cells are written as pixels: one call to the canvas, however many there are. */
function drawMap(colors) {
  grid = layOut();
  const { shown, size, columns, above, band } = grid;
  const canvas = $("map");
  const ratio = Math.max(1, Math.round(window.devicePixelRatio || 1));
  const [width, height] = [grid.width * ratio, Math.max(60, grid.height) * ratio];
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  canvas.style.width = `${grid.width}px`;
  canvas.style.height = `${height / ratio}px`;
  let longest = 1;
  for (const { length } of responses.values()) if (length > longest) longest = length;
  for (const { estimate } of shown) if (estimate > longest) longest = estimate;
  const image = canvas.getContext("2d").createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const side = size * ratio;
  const gap = size > 5 ? ratio : size > 4 ? 1 : 0;
  const ramp = Array.from({ length: 65 }, (_, i) => pack(mix(colors.cell0, colors.cell1, i / 64)));
  const shadeOf = (length) => ramp[Math.round(64 * Math.sqrt(length / longest))];
  const [edge, line, ink] = [colors.edge, colors.line, colors.ink].map((color) => pack(rgb(color)));
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
          length > 0 || finish !== null ? shade : ramp[0],
        );
      }
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  const open = shown.reduce((count, group) => count + (group.open > 0 ? 1 : 0), 0);
  $("map-name").textContent =
    shown.length === 0 ? "Groups" : `${number(shown.length)} groups, ${number(open)} unfinished`;
  if (shown.length > 0 && $("hint").textContent === "No requests yet.") {
    $("hint").textContent = "A click on a cell, or Enter, follows that response.";
  }
  if (shown.length > 0) $("longest").textContent = `0 to ${number(longest)} tokens`;
  $("scale").style.background =
    `linear-gradient(90deg, ${css(colors.cell0)}, ${css(colors.cell1)})`;
}

function responseAt({ offsetX, offsetY }) {
  if (grid === null) return undefined;
  const { shown, size, columns, above, band } = grid;
  const column = Math.floor(offsetX / size);
  if (column >= columns) return undefined;
  const group = shown[Math.floor(offsetY / band) * columns + column];
  return group?.responses[Math.floor(((offsetY % band) - above) / size)];
}

function describe({ id, index, length, finish, group }) {
  const done = group.responses
    .filter((one) => one.finish !== null)
    .map((one) => one.length)
    .sort((a, b) => a - b);
  const median =
    finish === null && done.length > 0
      ? ` · siblings' median ${number(done[done.length >> 1])}`
      : "";
  const expected =
    group.estimate === null ? "" : ` · estimate of the group ${number(group.estimate)}`;
  $("hint").textContent =
    `${nameOf(group)}, response ${index} · request ${id} · ${number(length)} tokens · ${finish ?? "not finished"}${median}${expected}`;
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
  const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  const move = moves[event.key];
  if (grid === null || grid.shown.length === 0) return;
  if (event.key === "Enter" && selected !== null) follow(selected);
  else if (move !== undefined) {
    const current = responses.get(selected);
    const at = current === undefined ? 0 : grid.shown.indexOf(current.group);
    const group = grid.shown[Math.max(0, Math.min(grid.shown.length - 1, at + move[0]))];
    const place = current === undefined ? 0 : current.group.responses.indexOf(current) + move[1];
    const next = group.responses[Math.max(0, Math.min(group.responses.length - 1, place))];
    selected = next.id;
    describe(next);
  } else return;
  event.preventDefault();
  isMapDirty = true;
  dueDraw();
};
