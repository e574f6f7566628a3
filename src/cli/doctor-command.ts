import { Command } from "commander";
export function doctorCommand(_setStatus: (status: number) => void): Command {
  return new Command("doctor");
}
