// A proxy that nobody listens at, in the environment of a test: what is asked for through it fails.

const NAMES = ["HTTP_PROXY", "http_proxy"];
export const DEAD_PROXY = Object.fromEntries(NAMES.map((name) => [name, "http://127.0.0.1:9"]));

export async function behindDeadProxy<T>(act: () => Promise<T>): Promise<T> {
  const before = { ...process.env };
  Object.assign(process.env, DEAD_PROXY);
  try {
    return await act();
  } finally {
    for (const name of NAMES) delete process.env[name];
    Object.assign(process.env, before);
  }
}
