/** A line of `GET /v1/sessions?format=ndjson`, as tests read it. */
export interface ExportedSession {
  readonly session: string;
  readonly group: string | null;
  readonly run: number;
  readonly state: string;
  readonly is_complete: boolean;
  readonly incomplete_because: readonly string[];
  readonly segments: readonly {
    readonly parent: { segment: number; tokens: number } | null;
    readonly token_ids: readonly number[];
    readonly loss_mask: readonly number[];
    readonly logprobs: readonly (number | null)[];
    readonly spans: readonly {
      readonly turn: number;
      readonly from: number;
      readonly to: number;
      readonly weight_epoch: number;
      readonly weight_version: string;
    }[];
  }[];
  readonly turns: readonly {
    readonly finish_reason: string;
    readonly output_tokens: number;
    readonly segment: number;
    readonly tool_calls: readonly { name: string; arguments: string }[];
  }[];
}
