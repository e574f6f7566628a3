// Branded identifiers: a request id cannot be passed where a group id is wanted.

declare const brand: unique symbol;
type Branded<T, B extends string> = T & { readonly [brand]: B };

/** One prompt and its responses. Unique within a rollout. */
export type GroupId = Branded<string, "GroupId">;
/** A request, which makes one response; never reused. The core's heaps use `Request.index`, which is reused. */
export type RequestId = Branded<number, "RequestId">;
/** One engine, as a small integer; numbers are dense and never reused. */
export type WorkerId = Branded<number, "WorkerId">;
/** Number of weight updates so far. KV and drafts of another epoch are unusable. */
export type WeightEpoch = Branded<number, "WeightEpoch">;
/** Name of an engine's weights: precision and digest. Equal names mean equal weights. */
export type WeightsId = Branded<string, "WeightsId">;

export const groupId = (value: string): GroupId => value as GroupId;
export const requestId = (value: number): RequestId => value as RequestId;
export const workerId = (value: number): WorkerId => value as WorkerId;
export const weightEpoch = (value: number): WeightEpoch => value as WeightEpoch;
export const weightsId = (value: string): WeightsId => value as WeightsId;
