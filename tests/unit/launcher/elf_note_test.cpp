#include "launcher/core/plan/elf_note.hpp"

#include <elf.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>

#include "rendezvous/base/template_mark.hpp"

using namespace torchup;

namespace {

template <class T>
std::string bytes_of(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

std::string mark(std::uint32_t version = 1) {
  TemplateMark note;
  note.value = version;
  return bytes_of(note);
}

/// A note of somebody else's, filled up as the kernel wants it.
std::string other_note(std::string_view owner, std::uint32_t type, std::string_view value, std::size_t alignment = 4) {
  const auto filled = [&](std::string text) {
    text.resize((text.size() + alignment - 1) / alignment * alignment);
    return text;
  };
  const Elf64_Nhdr header{static_cast<Elf64_Word>(owner.size() + 1), static_cast<Elf64_Word>(value.size()), type};
  return filled(filled(bytes_of(header) + std::string{owner} + '\0') + std::string{value});
}

Elf64_Ehdr usual_header(std::size_t segments) {
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = std::endian::native == std::endian::little ? ELFDATA2LSB : ELFDATA2MSB;
  header.e_type = ET_DYN;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = static_cast<Elf64_Half>(segments);
  return header;
}

struct Segment {
  Elf64_Word type = PT_NOTE;
  std::string content;
  Elf64_Xword alignment = 4;
};

/// A program of these segments, whose header `change` has changed.
template <class Change = void (*)(Elf64_Ehdr&)>
std::string program(
    const std::vector<Segment>& segments, Change change = [](Elf64_Ehdr&) {}) {
  Elf64_Ehdr header = usual_header(segments.size());
  change(header);
  std::string bytes = bytes_of(header);
  std::string contents;
  for (const Segment& segment : segments) {
    Elf64_Phdr entry{};
    entry.p_type = segment.type;
    entry.p_offset = sizeof header + segments.size() * sizeof entry + contents.size();
    entry.p_filesz = segment.content.size();
    entry.p_align = segment.alignment;
    bytes += bytes_of(entry);
    contents += segment.content;
  }
  return bytes + contents;
}

std::optional<std::uint32_t> mark_of(const std::string& file) {
  const auto read = [&](std::uint64_t offset, std::size_t size) {
    REQUIRE(size <= std::max(program_headers_max * sizeof(Elf64_Phdr), note_bytes_max));
    return offset < file.size() ? file.substr(offset, size) : std::string{};
  };
  return elf_note(read, TemplateMark::owner, TemplateMark::kind);
}

}  // namespace

TEST_CASE("the mark is found among the notes of a program", "[unit][preload]") {
  CHECK(mark_of(program({{.content = mark()}})) == 1);
  CHECK(mark_of(program({{.content = mark(7)}})) == 7);
  const std::string id = other_note("GNU", 3, "20 bytes of build id");
  CHECK(mark_of(program({{.content = id + other_note("x", 1, "odd") + mark()}})) == 1);
  CHECK(mark_of(program({{.type = PT_LOAD, .content = id}, {.content = id}, {.content = mark()}})) == 1);
  const std::string eight = other_note("torchup", 1, mark().substr(20), 8);
  CHECK(mark_of(program({{.content = other_note("GNU", 5, "property", 8), .alignment = 8}, {.content = mark()}})) == 1);
  CHECK(mark_of(program({{.content = other_note("GNU", 5, "odd", 8) + eight, .alignment = 8}})) == 1);
}

TEST_CASE("what is not the mark is none", "[unit][preload]") {
  CHECK(mark_of(program({})) == std::nullopt);
  CHECK(mark_of(program({{.type = PT_LOAD, .content = mark()}})) == std::nullopt);
  for (const std::string& note :
       {other_note("torchup", 2, "1234"), other_note("torchu", 1, "1234"), other_note("torchupd", 1, "1234"),
        other_note("torchup", 1, "123"), std::string{"\0\0\0\0", 4}, std::string{}}) {
    CHECK(mark_of(program({{.content = note}})) == std::nullopt);
  }
}

TEST_CASE("files that are no program of this machine have no mark", "[unit][preload]") {
  const std::vector<Segment> marked{{.content = mark()}};
  CHECK(mark_of("") == std::nullopt);
  CHECK(mark_of("#!/bin/sh\n") == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_ident[0] = 'x'; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_ident[EI_CLASS] = ELFCLASS32; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_ident[EI_DATA] ^= 3; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_type = ET_CORE; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_type = ET_REL; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_phentsize = 32; })) == std::nullopt);
  CHECK(mark_of(program(marked, [](Elf64_Ehdr& header) { header.e_phoff = ~Elf64_Off{0}; })) == std::nullopt);
}

TEST_CASE("a damaged program is read no further than it goes", "[unit][preload]") {
  const std::string whole = program({{.content = other_note("GNU", 3, "id") + mark()}});
  REQUIRE(mark_of(whole) == 1);
  for (std::size_t length = 0; length < whole.size(); ++length) CHECK(mark_of(whole.substr(0, length)) == std::nullopt);
  SECTION("sizes that nothing has") {
    Elf64_Nhdr header{~Elf64_Word{0}, ~Elf64_Word{0}, 1};
    CHECK(mark_of(program({{.content = bytes_of(header) + mark()}})) == std::nullopt);
    header.n_namesz = 0;
    CHECK(mark_of(program({{.content = bytes_of(header) + mark()}})) == std::nullopt);
  }
}

TEST_CASE("notes are looked for in no more than real programs have", "[unit][preload]") {
  std::vector<Segment> many(program_headers_max, {.type = PT_LOAD, .content = ""});
  many.back() = {.content = mark()};
  CHECK(mark_of(program(many)) == 1);
  many.push_back({.content = mark()});
  CHECK(mark_of(program(many)) == std::nullopt);

  const std::string fill(note_bytes_max - mark().size(), '\0');
  const auto filled = [&](std::size_t more) { return mark() + fill + std::string(more, '\0'); };
  CHECK(mark_of(program({{.content = filled(0)}})) == 1);
  CHECK(mark_of(program({{.content = filled(1)}})) == std::nullopt);
  const std::string nothing(note_bytes_max - mark().size() + 1, '\0');
  CHECK(mark_of(program({{.content = nothing}, {.content = mark()}})) == std::nullopt);
}
