// How much of an attack runs: a bounded share in every test run, all of it with `npm run adversary`.

/** `all` where the whole attack was asked for, else `share`. */
export function rounds(share: number, all: number): number {
  return process.env.FORETOKEN_ADVERSARY === "all" ? all : share;
}
