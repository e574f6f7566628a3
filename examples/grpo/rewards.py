"""Rewards for the tasks of the bundled model (model/README.md): 1 for the right answer, 0 for any other."""

import re

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
STEP = re.compile(r"(\d+)([+\-*/])(\d+)=(\d+)")


def reward(prompts: list[str], completions: list[str], **_: object) -> list[float]:
    return [score(prompt, completion) for prompt, completion in zip(prompts, completions, strict=True)]


def score(prompt: str, completion: str) -> float:
    task = re.sub(r"<\|\w+\|>", " ", prompt).split()
    answers = ANSWER.findall(completion)
    if not task or len(answers) != 1:
        return 0.0
    return float(is_right(task[0], task[1:], answers[0].strip()))


def is_right(kind: str, words: list[str], answer: str) -> bool:
    if kind == "countdown":
        *numbers, _to, target = words
        return is_countdown([int(n) for n in numbers], int(target), answer)
    numbers = [int(word) for word in words]
    if kind == "sort":
        return answer == " ".join(str(n) for n in sorted(numbers))
    if kind == "total":
        return answer == str(sum(numbers))
    if kind == "collatz":
        return answer == str(collatz_steps(numbers[0]))
    return False


def is_countdown(numbers: list[int], target: int, answer: str) -> bool:
    """Every number is used exactly once, each step on numbers that are still there, and the last is the target."""
    left = sorted(numbers)
    result = None
    for step in answer.split(","):
        match = STEP.fullmatch(step.strip())
        if match is None:
            return False
        a, operator, b, result = int(match[1]), match[2], int(match[3]), int(match[4])
        for operand in (a, b):
            if operand not in left:
                return False
            left.remove(operand)
        if operator == "/" and (b == 0 or a % b != 0):
            return False
        value = {"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else None}[operator]
        if value != result:
            return False
        left.append(result)
    return len(left) == 1 and result == target


def collatz_steps(n: int) -> int:
    steps = 0
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps += 1
    return steps
