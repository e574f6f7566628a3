import { expect, test } from "bun:test";
import { hasRestarted, readMetrics } from "./metrics.ts";

const NEW = `# HELP vllm:num_requests_running Number of requests
process_start_time_seconds 1.79527410986e+09
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:num_preemptions_total{engine="0",model_name="m"} 4.0
vllm:num_preemptions_created{engine="0",model_name="m"} 1.7952741654939282e+09
vllm:prompt_tokens_total{engine="0",model_name="m"} 10.0
vllm:prompt_tokens_by_source_total{engine="0",source="local_compute"} 99.0
vllm:generation_tokens_total{engine="0",model_name="m"} 9.0
vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0
vllm:spec_decode_num_draft_tokens_total{engine="0"} 50.0
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 40.0
vllm:spec_decode_num_drafts_total{engine="0"} 11.0
vllm:external_prefix_cache_hits_total{engine="0",model_name="m"} 832.0
vllm:mooncake_store_operation_failed_keys_total{engine="0",operation="load_get",status="partial_failure"} 3.0
vllm:mooncake_store_operation_failed_keys_total{engine="0",operation="save_put",status="error"} 2.0
vllm:mooncake_store_operation_time_seconds_bucket{engine="0",le="0.001",operation="load_get"} 9.0
vllm:mooncake_store_operation_time_seconds_sum{engine="0",operation="load_get"} 0.5
vllm:mooncake_store_operation_time_seconds_sum{engine="0",operation="save_put"} 0.25
vllm:cache_config_info{_block_size_resolved="True",block_size="128",effective_attention_block_size="64",engine="0",num_cpu_blocks="None",num_gpu_blocks="2048",num_gpu_blocks_override="None"} 1.0
`;

test("readMetrics: a live 0.32", () => {
  expect(readMetrics(NEW)).toEqual({
    running: 3,
    waiting: 2,
    kvUsage: 0.25,
    counters: {
      steps: 7,
      preemptions: 4,
      promptTokens: 10,
      generationTokens: 9,
      drafts: 11,
      draftedTokens: 50,
      acceptedTokens: 40,
      externalHitTokens: 832,
      poolFailedBlocks: 5,
      poolSeconds: 0.75,
    },
    startedS: 1.79527410986e9,
    cache: { blockSize: 128, blocks: 2048, engines: 1, blocksMin: 2048, isHybrid: false },
  });
});

test("readMetrics: older names mean the same", () => {
  const old = readMetrics(
    'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_preemptions{model_name="m"} 4\n',
  );
  expect([old.kvUsage, old.counters.preemptions]).toEqual([0.5, 4]);
});

test("readMetrics: engines of one server are added up, their KV use is a mean", () => {
  const second = NEW.replaceAll('engine="0"', 'engine="1"').replace("0.25", "0.75");
  const both = readMetrics(NEW + second.replace(/process.*\n/, ""));
  expect(both.cache).toMatchObject({ blockSize: 128, blocks: 4096, engines: 2, blocksMin: 2048 });
  const hybrid = NEW.replace('block_size="128"', 'block_size="128",mamba_block_size="2100"');
  expect(readMetrics(hybrid).cache).toMatchObject({ blockSize: 128, isHybrid: true });
  const none = NEW.replace('block_size="128"', 'block_size="128",mamba_block_size="None"');
  expect(readMetrics(none).cache?.isHybrid).toBe(false);
  expect([both.running, both.kvUsage]).toEqual([6, 0.5]);
});

test("readMetrics: missing names and invalid values count as zero", () => {
  const empty = readMetrics("<html>\nvllm:num_requests_running NaN\nvllm:cache_config_info{} 1\n");
  expect([empty.running, empty.kvUsage, empty.cache]).toEqual([0, 0, null]);
});

test("hasRestarted: another start, or counters that went back", () => {
  const before = readMetrics(NEW);
  const later = readMetrics(NEW.replace('model_name="m"} 9.0', 'model_name="m"} 12.0'));
  expect(hasRestarted(before, later)).toBe(false);
  expect(hasRestarted(later, before)).toBe(true);
  expect(hasRestarted(before, { ...later, startedS: 5 })).toBe(true);
});
