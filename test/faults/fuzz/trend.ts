// Whether a measured quantity grows: the slope of a straight line by least squares, with its 95 % interval.

export interface Point {
  readonly x: number;
  readonly y: number;
}

export interface Trend {
  /** Slope in units of y per unit of x. */
  readonly slope: number;
  readonly low: number;
  readonly high: number;
}

/** Two-sided, 95 %, of Student's distribution, for 1 to 30 degrees of freedom. */
const T95 = [12.71, 4.3, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23]
  .concat([2.2, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.1, 2.09, 2.09])
  .concat([2.08, 2.07, 2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04]);
const T95_NORMAL = 1.96;

/**
 * The interval takes residuals as independent. Samples of a process in short succession are not: it is then too narrow,
 * so it errs towards reporting growth. null: fewer than three points, or all at one x.
 */
export function trendOf(points: readonly Point[]): Trend | null {
  const count = points.length;
  if (count < 3) return null;
  const mean = (of: (point: Point) => number) =>
    points.reduce((sum, point) => sum + of(point), 0) / count;
  const [meanX, meanY] = [mean(({ x }) => x), mean(({ y }) => y)];
  const sum = (of: (dx: number, dy: number) => number) =>
    points.reduce((total, { x, y }) => total + of(x - meanX, y - meanY), 0);
  const spread = sum((dx) => dx * dx);
  if (spread === 0) return null;
  const slope = sum((dx, dy) => dx * dy) / spread;
  const residual = sum((dx, dy) => (dy - slope * dx) ** 2);
  const error = Math.sqrt(residual / (count - 2) / spread);
  const half = (T95[count - 3] ?? T95_NORMAL) * error;
  return { slope, low: slope - half, high: slope + half };
}
