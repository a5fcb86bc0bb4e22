"""A reader of delimited text that does one row after the other by the rules alone, to compare the fast ones with."""

import math
import re

BLANK = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
LAST_SECOND = 253_402_300_799


class PlainReader:
    """Reads source, target and time (seconds) by position; `events`, `rejected` and `num_comments` are the result."""

    def __init__(self, content, *, separator, at, num_fields, header=False, marks="%#", max_bytes=1 << 22):
        self.separator, self.at, self.num_fields, self.marks = separator, at, num_fields, marks
        self.events, self.rejected, self.num_comments = [], [], 0
        lines = [self.line(number, line, max_bytes) for number, line in enumerate(split_lines(content), 1)]
        names = None
        in_front = True
        at_line = 0
        while at_line < len(lines):
            number, text, fault = lines[at_line]
            at_line += 1
            if not text.strip(BLANK):
                continue
            if text.startswith(tuple(marks)) and marks and (in_front or not header):
                self.num_comments += 1
            elif fault is not None:
                self.rejected.append((number, fault, text))
            elif in_front and header:
                in_front, names = False, text.strip(BLANK)
            else:
                in_front = False
                at_line += self.row(number, text, lines[at_line : at_line + 99], names, max_bytes)

    def line(self, number, line, max_bytes):
        if len(line) > max_bytes:
            text = line[:1000].decode("utf-8", "backslashreplace").lstrip("\ufeff").replace("\0", r"\x00") + "..."
            return number, text, f"line longer than {max_bytes:,} bytes"
        text = line.decode("utf-8", "backslashreplace").lstrip("\ufeff")
        try:
            line.decode()
        except UnicodeDecodeError:
            return number, text.replace("\0", r"\x00"), "not UTF-8 text"
        return number, text.replace("\0", r"\x00"), "NUL byte" if "\0" in text else None

    def row(self, number, text, following, names, max_bytes):
        """Take a row; returns the number of further lines that are part of it."""
        fields, fault = self.fields(text)
        whole = text
        for used, (_, more, its_fault) in enumerate(following, 1) if fault == "unclosed quote" else ():
            if its_fault is not None or len(whole) + len(more) >= max_bytes:
                break
            whole += "\n" + more
            joined, joined_fault = self.fields(whole)
            if joined_fault is None and len(joined) in self.num_fields:
                self.values(number, whole, joined)
                return used
            if joined_fault != "unclosed quote":
                break
        if fault is None and text.strip(BLANK) == names:
            fault = "header repeated"
        if fault is None and len(fields) not in self.num_fields:
            fault = "too few fields" if len(fields) < self.num_fields.start else "too many fields"
        if fault is None:
            self.values(number, text, fields)
        else:
            self.rejected.append((number, fault, text))
        return 0

    def fields(self, text):  # noqa: C901, because it is the rule in one place
        """Split character by character."""
        is_space = self.separator == " "
        text = text.strip(" \t") if is_space else text
        separators = " \t" if is_space else self.separator
        fields, at = [], 0
        while True:
            start = at
            while not is_space and text[at : at + 1] == " " and separators != " ":
                at += 1
            if text[at : at + 1] == '"':
                value, at = "", at + 1
                while at < len(text) and (text[at] != '"' or text[at : at + 2] == '""'):
                    value, at = value + text[at], at + (2 if text[at] == '"' else 1)
                if at >= len(text):
                    return [], "unclosed quote"
                at += 1
                while not is_space and text[at : at + 1] == " ":
                    at += 1
                if at < len(text) and text[at] not in separators:
                    return [], "broken quoting"
            else:
                at = start
                while at < len(text) and text[at] not in separators:
                    at += 1
                value = text[start:at]
            fields.append(value.strip(BLANK))
            if at == len(text):
                return fields, None
            at += 1
            while is_space and text[at] in separators:
                at += 1

    def values(self, number, text, fields):
        source, target, time = (fields[at] for at in self.at)
        source, target = (re.sub(r"^(-?[1-9][0-9]*|0)\.0+$", r"\1", end) for end in (source, target))
        fault = id_fault(source, target) or time_fault(time)
        if fault is None:
            self.events.append((number, source, target, round(float(time) * 1_000_000)))
        else:
            self.rejected.append((number, fault, text))


def split_lines(content):
    lines = re.split(rb"\r\n|\r|\n", content.removeprefix(b"\xef\xbb\xbf"))
    return lines[:-1] if not lines[-1] else lines


def id_fault(source, target):
    if source and target:
        return None
    return "empty source id" if target else "empty target id" if source else "empty source and target ids"


def time_fault(text):
    if not text:
        return "missing time"
    if not NUMBER.fullmatch(text):
        return "unreadable time"
    if math.isinf(float(text)):
        return "time is not finite"
    if float(text) < 0:
        return "negative time"
    return "time out of range" if float(text) > LAST_SECOND else None
