#!/usr/bin/env python3
"""Writes the public face of a crate as text: what a program that depends on it can name without a hidden module.

Usage: public-api.py FILE RUSTDOC_JSON... [--check]. The first JSON is the crate's, the others are of crates that it
re-exports. With --check it writes nothing and fails if FILE is out of date. Called by scripts/public-api.sh.
"""

import difflib
import json
import sys
from pathlib import Path

# As rustdoc of the compiler in use writes it; another one may have other fields.
FORMAT = 57


class Crate:
    """One crate's documentation."""

    def __init__(self, path):
        self.doc = json.loads(Path(path).read_text())
        if self.doc["format_version"] != FORMAT:
            sys.exit(f"public-api: {path} has format {self.doc['format_version']}, and this reads format {FORMAT}: "
                     "look what has changed, and raise FORMAT in scripts/public-api.py")
        self.index = self.doc["index"]
        self.paths = self.doc["paths"]
        self.own = {tuple(path["path"]) + (path["kind"],): id
                    for id, path in self.paths.items() if path["crate_id"] == 0}

    def item(self, id):
        return self.index.get(str(id))

    def shown(self, id):
        """An item that is not hidden."""
        item = self.item(id)
        is_hidden = item is None or any("doc(hidden)" in str(attr) for attr in item["attrs"])
        return None if is_hidden else item


class Face:
    """The lines of a face."""

    def __init__(self, crates):
        self.crates = crates
        self.names = []
        self.constants = []
        self.lines = []

    def find(self, crate, id):
        """An item, in the crate that has it: here, or where it is re-exported from."""
        if (item := crate.item(id)) is not None:
            return crate, item
        path = crate.paths.get(str(id))
        if path is None:
            return None, None
        for other in self.crates:
            if (own := other.own.get(tuple(path["path"]) + (path["kind"],))) is not None:
                return other, other.item(own)
        return None, None

    def module(self, crate, item, name):
        for id in item["inner"]["module"]["items"]:
            inner = crate.shown(id)
            if inner is None:
                continue
            if "use" not in inner["inner"]:
                self.one(crate, inner, f"{name}::{inner['name']}")
                continue
            use = inner["inner"]["use"]
            of, what = self.find(crate, use["id"])
            if what is None:
                self.lines.append(f"{name}::{use['name']} = {use['source']}")
            elif use["is_glob"]:
                self.module(of, what, name)
            else:
                self.one(of, what, f"{name}::{use['name']}")

    def one(self, crate, item, name):
        kind, inner = next(iter(item["inner"].items()))
        if kind == "module":
            self.lines.append(f"mod {name}")
            return self.module(crate, item, name)
        (self.constants if kind == "constant" else self.names).append(name)
        if kind == "function":
            self.lines.append(function(inner, name))
        elif kind in ("struct", "enum", "union"):
            self.lines.append(f"{kind} {name}{generics(inner['generics'])}{derived(crate, inner)}")
            self.fields(crate, inner, kind)
            self.methods(crate, inner)
        elif kind == "trait":
            bounds = [bound(one) for one in inner["bounds"]]
            self.lines.append(f"trait {name}{generics(inner['generics'])}{': ' + ' + '.join(bounds) if bounds else ''}")
            for id in inner["items"]:
                self.member(crate.shown(id))
        elif kind == "constant":
            self.lines.append(f"const {name}: {text(inner['type'])}")
        elif kind == "static":
            self.lines.append(f"static {name}: {text(inner['type'])}")
        elif kind == "type_alias":
            self.lines.append(f"type {name}{generics(inner['generics'])} = {text(inner['type'])}")
        else:
            self.lines.append(f"{kind} {name}")

    def fields(self, crate, inner, kind):
        if kind == "enum":
            return [self.variant(crate, crate.shown(id)) for id in inner["variants"]]
        how = inner.get("kind", inner)
        for id in (how.get("plain", how) if isinstance(how, dict) else {}).get("fields", []):
            if (field := crate.shown(id)) is not None and field["visibility"] == "public":
                self.lines.append(f"    {field['name']}: {text(field['inner']['struct_field'])}")

    def variant(self, crate, item):
        if item is None:
            return
        kind = item["inner"]["variant"]["kind"]
        line = f"    {item['name']}"
        if isinstance(kind, dict) and "tuple" in kind:
            fields = [crate.item(id) for id in kind["tuple"] if id is not None]
            line += "(" + ", ".join(text(one["inner"]["struct_field"]) for one in fields if one) + ")"
        elif isinstance(kind, dict):
            fields = [crate.item(id) for id in kind["struct"]["fields"]]
            line += " { " + ", ".join(f"{one['name']}: {text(one['inner']['struct_field'])}" for one in fields if one) + " }"
        self.lines.append(line)

    def methods(self, crate, inner):
        for id in inner["impls"]:
            item = crate.item(id)
            one = item["inner"]["impl"] if item else None
            if one and one["trait"] is None:
                for member in one["items"]:
                    self.member(crate.shown(member))

    def member(self, item):
        if item is None:
            return
        kind, inner = next(iter(item["inner"].items()))
        if item["visibility"] not in ("public", "default"):
            return
        if kind == "function":
            self.lines.append("    " + function(inner, item["name"]))
        elif kind == "assoc_const":
            self.lines.append(f"    const {item['name']}: {text(inner['type'])}")
        elif kind == "assoc_type":
            self.lines.append(f"    type {item['name']}")


def derived(crate, inner):
    """The traits that a type implements by itself."""
    names = set()
    for id in inner["impls"]:
        item = crate.item(id)
        one = item["inner"]["impl"] if item else None
        if one and one["trait"] and not one["is_synthetic"] and one["blanket_impl"] is None:
            names.add(named(one["trait"]["path"], one["trait"].get("args")))
    return f": {' + '.join(sorted(names))}" if names else ""


def function(inner, name):
    sig, header = inner["sig"], inner["header"]
    words = [word for word, key in (("const ", "is_const"), ("async ", "is_async"), ("unsafe ", "is_unsafe")) if header[key]]
    inputs = ", ".join(argument(one, type) for one, type in sig["inputs"])
    output = f" -> {text(sig['output'])}" if sig["output"] else ""
    return f"{''.join(words)}fn {name}{generics(inner['generics'])}({inputs}){output}"


def argument(name, type):
    if name != "self":
        return text(type)
    shown = text(type)
    return {"Self": "self", "&Self": "&self", "&mut Self": "&mut self"}.get(shown, f"self: {shown}")


def generics(all):
    shown = []
    for one in all["params"]:
        kind, inner = next(iter(one["kind"].items()))
        if kind == "type" and inner["is_synthetic"]:
            continue
        bounds = [bound(each) for each in inner.get("bounds", [])] if kind == "type" else []
        shown.append(one["name"] + (": " + " + ".join(bounds) if bounds else ""))
    return f"<{', '.join(shown)}>" if shown else ""


def bound(one):
    if "trait_bound" in one:
        trait = one["trait_bound"]["trait"]
        mark = {"maybe": "?"}.get(one["trait_bound"]["modifier"], "")
        return mark + named(trait["path"], trait.get("args"))
    return one.get("outlives") or "use<..>"


def named(path, args):
    """A name with its arguments; of its path the last part, for where it is defined may change."""
    name = path.rsplit("::", 1)[-1]
    if not args:
        return name
    if "parenthesized" in args:
        of = args["parenthesized"]
        output = f" -> {text(of['output'])}" if of["output"] else ""
        return f"{name}({', '.join(text(one) for one in of['inputs'])}){output}"
    if "angle_bracketed" not in args:
        return name
    shown = []
    for one in args["angle_bracketed"]["args"]:
        kind, inner = next(iter(one.items())) if isinstance(one, dict) else (one, None)
        shown.append(text(inner) if kind == "type" else inner["expr"] if kind == "const" else inner or "_")
    for one in args["angle_bracketed"]["constraints"]:
        kind, inner = next(iter(one["binding"].items()))
        what = text(inner["type"]) if kind == "equality" and "type" in inner else "_"
        if kind == "constraint":
            what = " + ".join(bound(each) for each in inner)
        shown.append(f"{one['name']} = {what}" if kind == "equality" else f"{one['name']}: {what}")
    return f"{name}<{', '.join(shown)}>" if shown else name


def text(type):
    """A type, as it is written."""
    if isinstance(type, str):
        return "_" if type == "infer" else type
    kind, inner = next(iter(type.items()))
    if kind == "resolved_path":
        return named(inner["path"], inner.get("args"))
    if kind in ("generic", "primitive"):
        return inner
    if kind == "borrowed_ref":
        life = f"{inner['lifetime']} " if inner["lifetime"] else ""
        return f"&{life}{'mut ' if inner['is_mutable'] else ''}{text(inner['type'])}"
    if kind == "raw_pointer":
        return f"*{'mut' if inner['is_mutable'] else 'const'} {text(inner['type'])}"
    if kind == "tuple":
        return f"({', '.join(text(one) for one in inner)})"
    if kind == "slice":
        return f"[{text(inner)}]"
    if kind == "array":
        return f"[{text(inner['type'])}; {inner['len']}]"
    if kind == "impl_trait":
        return "impl " + " + ".join(bound(one) for one in inner)
    if kind == "dyn_trait":
        traits = [named(one["trait"]["path"], one["trait"].get("args")) for one in inner["traits"]]
        return "dyn " + " + ".join(traits + ([inner["lifetime"]] if inner["lifetime"] else []))
    if kind == "qualified_path":
        return f"{text(inner['self_type'])}::{inner['name']}"
    if kind == "function_pointer":
        inputs = ", ".join(text(one) for _, one in inner["sig"]["inputs"])
        output = f" -> {text(inner['sig']['output'])}" if inner["sig"]["output"] else ""
        return f"fn({inputs}){output}"
    return kind


def main():
    check = "--check" in sys.argv
    file, *documents = [arg for arg in sys.argv[1:] if not arg.startswith("--")]
    crates = [Crate(one) for one in documents]
    face, first = Face(crates), crates[0]
    root = first.item(first.doc["root"])
    face.module(first, root, root["name"])
    at_root = [name for name in face.names if name.count("::") == 1]
    head = [f"# {len(face.names)} public items, {len(at_root)} of them at the root, and {len(face.constants)} constants: "
            "reasons of failures, and bounds. Made by scripts/public-api.sh."]
    wanted = "\n".join(head + face.lines) + "\n"
    if not check:
        Path(file).write_text(wanted)
        print(head[0][2:])
        return
    there = Path(file).read_text() if Path(file).exists() else ""
    if there != wanted:
        sys.stdout.writelines(difflib.unified_diff(there.splitlines(True), wanted.splitlines(True), file, "the sources"))
        sys.exit(f"public-api: {file} is out of date: if the change is meant, run scripts/public-api.sh and note it in CHANGELOG.md")
    print(head[0][2:])


main()
