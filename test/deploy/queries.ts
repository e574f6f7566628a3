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

/** With Grafana's variables replaced as it would. */
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

export function alertQueries(): Query[] {
  const text = readFileSync(join(DEPLOY, "prometheus", "rules.yml"), "utf8");
  const { groups } = Bun.YAML.parse(text) as Rules;
  return groups.flatMap(({ rules }) => rules.map(({ alert, expr }) => ({ of: alert, expr })));
}

/** Metrics that a query names; `up` is Prometheus' own. */
export function metricsIn({ expr }: Query): string[] {
  return [...expr.matchAll(/\b(?:foretoken_|vllm:|process_)[a-z0-9_]+/g)].map(([name]) => name);
}
