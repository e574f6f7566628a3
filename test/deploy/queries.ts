// What deploy/ asks of Prometheus: the queries of the dashboard's panels, and the expressions of the alert rules.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { ROOT } from "../e2e/tool.ts";

export const DEPLOY = join(ROOT, "deploy");

interface Panel {
  readonly title: string;
  readonly targets?: readonly { readonly expr: string }[];
}

interface Rules {
  readonly groups: readonly { readonly rules: readonly { alert: string; expr: string }[] }[];
}

export interface Query {
  readonly of: string;
  readonly expr: string;
}

/** Queries of the panels, with Grafana's variables replaced. */
export function panelQueries(): Query[] {
  const text = readFileSync(join(DEPLOY, "grafana", "dashboard.json"), "utf8");
  const { panels } = JSON.parse(text) as { panels: Panel[] };
  return panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({
      of: title,
      expr: expr
        .replaceAll("$instance", ".*")
        .replaceAll("$__rate_interval", "30s")
        .replaceAll("$__range", "1h"),
    })),
  );
}

const QUANTILES = ["e2e_request_latency", "inter_token_latency", "time_to_first_token"];
const MEANS = [...QUANTILES, "time_per_output_token"];
const RATES = [
  ...["prompt_tokens_total", "generation_tokens_total", "request_queue_time_seconds_sum"],
  ...["request_prefill_time_seconds_sum", "request_decode_time_seconds_sum"],
  ...["request_max_num_generation_tokens_sum", "num_preemptions_total"],
  ...["spec_decode_num_draft_tokens_total", "spec_decode_num_drafts_total"],
  "spec_decode_num_accepted_tokens_total",
];
const GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"];

/** In the form of the queries in vLLM's own dashboards (examples/observability): by model, over all engines. */
export function vllmQueries(): Query[] {
  const of = '{model_name=~".+", instance=~".*", engine=~".*"}';
  const rate = (name: string) => `rate(vllm:${name}${of}[30s])`;
  const quantile = (name: string) =>
    `histogram_quantile(0.99, sum by (le) (${rate(`${name}_seconds_bucket`)}))`;
  const mean = (name: string) =>
    `${rate(`${name}_seconds_sum`)} / ${rate(`${name}_seconds_count`)}`;
  const bucketsOf = (name: string) => `sum by (le) (increase(vllm:${name}_bucket${of}[30s]))`;
  return [
    ...QUANTILES.map(quantile),
    ...MEANS.map(mean),
    ...["request_prompt_tokens", "request_generation_tokens"].map(bucketsOf),
    `sum by (finished_reason) (increase(vllm:request_success_total${of}[30s]))`,
    `sum(vllm:num_requests_waiting_by_reason${of}) by (reason)`,
    ...RATES.map(rate),
    ...GAUGES.map((name) => `vllm:${name}${of}`),
  ].map((expr) => ({ of: "vLLM's dashboards", expr }));
}

export function alertQueries(): Query[] {
  const text = readFileSync(join(DEPLOY, "prometheus", "rules.yml"), "utf8");
  const { groups } = Bun.YAML.parse(text) as Rules;
  return groups.flatMap(({ rules }) => rules.map(({ alert, expr }) => ({ of: alert, expr })));
}

/** Metrics that a query names; `up` is Prometheus' own. */
export function metricsIn({ expr }: Query): string[] {
  return [...expr.matchAll(/\b(?:foretoken_|vllm:|process_)[a-z0-9_]+/g)].map(([name]) => name);
}
