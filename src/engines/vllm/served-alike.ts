// Whether the vLLM servers of a run report the same model. Nothing over HTTP gives a digest of a server's
// weights: what can be compared is its model's name, context, type and quantization, and a difference is a warning.

export interface ServedTraits {
  readonly model: string;
  readonly max_model_len: number;
  /** null: not reported (only in development mode). */
  readonly dtype: string | null;
  readonly quantization: string | null;
}

const TRAITS = ["model", "max_model_len", "dtype", "quantization"] as const;

export class ServedAlike {
  #first: { readonly url: string; readonly traits: ServedTraits } | null = null;

  /** null: as the first server of the run; otherwise how it differs. */
  compare(url: string, traits: ServedTraits): string | null {
    if (this.#first === null || this.#first.url === url) {
      this.#first = { url, traits };
      return null;
    }
    const { url: other, traits: expected } = this.#first;
    const differing = TRAITS.filter((name) => {
      const [here, there] = [traits[name], expected[name]];
      return here !== null && there !== null && here !== there;
    });
    if (differing.length === 0) return null;
    const differences = differing.map(
      (name) => `${name} is ${traits[name]}, of ${other} ${expected[name]}`,
    );
    return `it may have other weights than ${other}: ${differences.join("; ")}`;
  }
}
