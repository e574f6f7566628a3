// The training curves as SVG: reward, response length and seconds of generation by step, both ways, a line a seed.

export interface CurveRun {
  readonly reward: readonly number[];
  readonly length: readonly number[];
  readonly generation_s: readonly number[];
}

export type Arms = Readonly<Record<"foretoken" | "direct", readonly CurveRun[]>>;

const WIDTH = 860;
const LEFT = 60;
const PLOT = WIDTH - LEFT - 20;
const STRIP = 150;
const GAP = 46;
const TOP = 40;
/** Of the Okabe-Ito palette, distinct to colour-blind eyes. */
const COLORS = { foretoken: "#0072b2", direct: "#d55e00" } as const;
const PANELS = [
  { title: "reward", of: (run: CurveRun) => run.reward },
  { title: "response length, tokens", of: (run: CurveRun) => run.length },
  { title: "seconds of generation", of: (run: CurveRun) => run.generation_s },
] as const;

const STYLE = `<style>
text{font:12px system-ui,sans-serif;fill:#333}.end{text-anchor:end}
.frame{fill:none;stroke:#999}.line{fill:none;stroke-width:1.3;stroke-linejoin:round;opacity:.8}
@media (prefers-color-scheme:dark){text{fill:#ddd}.frame{stroke:#777}}
</style>`;

export function plotOf(arms: Arms): string {
  const height = TOP + PANELS.length * (STRIP + GAP);
  const legend = Object.entries(COLORS).map(
    ([name, color], i) =>
      `<rect x="${LEFT + i * 130}" y="8" width="12" height="12" fill="${color}"/><text x="${LEFT + i * 130 + 17}" y="18">${name === "direct" ? "the servers directly" : "Foretoken"}</text>`,
  );
  const panels = PANELS.map(({ title, of }, i) => {
    const y = TOP + i * (STRIP + GAP);
    const lines = (["direct", "foretoken"] as const).map((name) => ({
      color: COLORS[name],
      runs: arms[name].map(of),
    }));
    return panelOf(title, lines, y);
  });
  return [
    `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="training curves">`,
    STYLE,
    ...legend,
    ...panels,
    "</svg>\n",
  ].join("\n");
}

function panelOf(
  title: string,
  lines: readonly { readonly color: string; readonly runs: readonly (readonly number[])[] }[],
  y: number,
): string {
  const values = lines.flatMap(({ runs }) => runs.flat());
  const max = Math.max(1e-9, ...values);
  const steps = Math.max(2, ...lines.flatMap(({ runs }) => runs.map((run) => run.length)));
  const paths = lines.flatMap(({ color, runs }) =>
    runs.map((run) => {
      const points = run.map((value, step) => {
        const x = LEFT + (step / (steps - 1)) * PLOT;
        return `${x.toFixed(1)},${(y + STRIP * (1 - value / max)).toFixed(1)}`;
      });
      return `<polyline class="line" stroke="${color}" points="${points.join(" ")}"/>`;
    }),
  );
  return [
    `<text x="${LEFT}" y="${y - 6}">${title}</text>`,
    `<rect class="frame" x="${LEFT}" y="${y}" width="${PLOT}" height="${STRIP}"/>`,
    `<text class="end" x="${LEFT - 6}" y="${y + 10}">${Number(max.toPrecision(3))}</text>`,
    `<text class="end" x="${LEFT - 6}" y="${y + STRIP}">0</text>`,
    `<text class="end" x="${LEFT + PLOT}" y="${y + STRIP + 16}">step ${steps}</text>`,
    ...paths,
  ].join("\n");
}
