#include "launcher/core/diagnosis/elf_symbols.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/support/elf_image.hpp"

using namespace torchup;
using namespace torchup::test;

namespace {

using Names = std::vector<std::string>;

ReadAt reader(const std::string& file, std::size_t* asked = nullptr) {
  return [&file, asked](std::uint64_t offset, std::size_t bytes) {
    if (asked) *asked += bytes;
    return offset < file.size() ? file.substr(offset, bytes) : std::string{};
  };
}

Names names_in(const ElfImage& image, const std::vector<std::uint64_t>& addresses) {
  const std::string file = image.bytes();
  const auto names = elf_function_names(reader(file), addresses);
  REQUIRE(names.has_value());
  return *names;
}

/// Of one address in a file with these symbols.
std::string name_at(std::uint64_t address, std::vector<ElfImage::Symbol> symbols, std::size_t locals = 0) {
  ElfImage image;
  image.symbols = std::move(symbols);
  image.locals = locals;
  return names_in(image, {address}).at(0);
}

}  // namespace

TEST_CASE("a function is known by any address within it", "[unit][elf_symbols]") {
  ElfImage image;
  image.symbols = {{"first", 0x1000, 16}, {"second", 0x1010, 32}};
  CHECK(names_in(image, {0x1000, 0x100f, 0x1010, 0x102f, 0x1030, 0xfff, 0, ~0ULL}) ==
        Names{"first", "first", "second", "second", "", "", "", ""});
  CHECK(names_in(image, {0x1011, 0x1001, 0x1011}) == Names{"second", "first", "second"});  // as they were asked for
  CHECK(names_in(image, {}).empty());
}

TEST_CASE("of several functions at an address one is chosen", "[unit][elf_symbols]") {
  CHECK(name_at(0x1008, {{"around", 0x1000, 64}, {"inner", 0x1004, 16}}) == "inner");
  CHECK(name_at(0x1008, {{"inner", 0x1004, 16}, {"around", 0x1000, 64}}) == "inner");
  CHECK(name_at(0x1008, {{"long", 0x1000, 64}, {"short", 0x1000, 16}}) == "short");
  CHECK(name_at(0x1008, {{"weak", 0x1000, 16, STB_WEAK}, {"strong", 0x1000, 16}}) == "strong");
  CHECK(name_at(0x1008, {{"strong", 0x1000, 16}, {"weak", 0x1000, 8, STB_WEAK}}) == "strong");
  CHECK(name_at(0x1008, {{"one", 0x1000, 16}, {"other", 0x1000, 16}}) == "one");
  CHECK(name_at(0x1008, {{"local", 0x1004, 16, STB_LOCAL}, {"global", 0x1000, 64}}, 1) == "global");
  CHECK(name_at(0x1008, {{"local", 0x1004, 16, STB_LOCAL}, {"global", 0x1000, 8}}, 1) == "local");
}

TEST_CASE("a label without a size names what is behind it in its section", "[unit][elf_symbols]") {
  const ElfImage::Symbol label{"label", 0x1000, 0, STB_LOCAL};
  CHECK(name_at(0x1020, {label}, 1) == "label");
  CHECK(name_at(0x1020, {label, {"later", 0x1010, 0, STB_LOCAL}}, 2) == "later");
  CHECK(name_at(0x1020, {label, {"global", 0x1000, 0}}, 1) == "label");
  CHECK(name_at(0x1020, {{"one", 0x1000, 0}, {"other", 0x1000, 0, STB_WEAK}, {"before", 0xff8, 0}}) == "other");
  CHECK(name_at(0x1020, {label, {"sized", 0x1008, 8}}, 1).empty());  // it ends before, and the label is further off
  CHECK(name_at(0x1020, {label, {"sized", 0xff0, 16}}, 1) == "label");
  CHECK(name_at(0x2000, {label}, 1).empty());  // another section's address
  ElfImage image;
  image.symbols = {label};
  CHECK(names_in(image, {0x1001, 0x1002, 0xfff}) == Names{"label", "label", ""});
}

TEST_CASE("what is no function's name is passed over", "[unit][elf_symbols]") {
  CHECK(name_at(0x1001, {{"file", 0x1000, 16, STB_LOCAL, STT_FILE}}).empty());
  CHECK(name_at(0x1001, {{"section", 0x1000, 16, STB_LOCAL, STT_SECTION}}).empty());
  CHECK(name_at(0x1001, {{"variable", 0x1000, 16, STB_GLOBAL, STT_TLS}}).empty());
  CHECK(name_at(0x1001, {{"elsewhere", 0x1000, 16, STB_GLOBAL, STT_FUNC, SHN_UNDEF}}).empty());
  CHECK(name_at(0x1001, {{"number", 0x1000, 16, STB_GLOBAL, STT_FUNC, SHN_ABS}}).empty());
  CHECK(name_at(0x1001, {{"", 0x1000, 16}}).empty());
}

TEST_CASE("symbols are found wherever a file has them", "[unit][elf_symbols]") {
  ElfImage image;
  image.symbols = {{"dynamic", 0x1000, 16}};
  SECTION("in the dynamic linker's table, where there is no other") {
    image.table_type = SHT_DYNSYM;
    CHECK(names_in(image, {0x1000}) == Names{"dynamic"});
  }
  SECTION("nowhere") {
    image.table_type = SHT_PROGBITS;
    CHECK(names_in(image, {0x1000}) == Names{""});
  }
  SECTION("beside a compressed table, which is not ours to read") {
    image.table_type = SHT_DYNSYM;
    image.extra_section = ".gnu_debugdata";
    const std::string file = image.bytes();
    CHECK_FALSE(elf_function_names(reader(file), std::vector<std::uint64_t>{0x1000}));
    image.table_type = SHT_SYMTAB;  // that has all
    CHECK(names_in(image, {0x1000}) == Names{"dynamic"});
  }
  SECTION("in a table of many pieces") {
    image.symbols.clear();
    for (std::uint64_t i = 0; i < 20000; ++i) image.symbols.push_back({"f" + std::to_string(i), 0x100000 + 16 * i, 16});
    CHECK(names_in(image, {0x100000, 0x100000 + 16 * 2728, 0x100000 + 16 * 2729, 0x100000 + 16 * 19999 + 15}) ==
          Names{"f0", "f2728", "f2729", "f19999"});
  }
}

TEST_CASE("a file that lies about itself is read no further than the limits", "[unit][elf_symbols]") {
  ElfImage image;
  image.symbols = {{"first", 0x1000, 16}};
  const std::vector<std::uint64_t> addresses{0x1000};
  std::string file = image.bytes();
  const auto section = [&](std::size_t index) {
    Elf64_Ehdr header;
    std::memcpy(&header, file.data(), sizeof header);
    return file.data() + header.e_shoff + index * sizeof(Elf64_Shdr);
  };
  const auto change = [&](std::size_t index, auto field, auto value) {
    Elf64_Shdr changed;
    std::memcpy(&changed, section(index), sizeof changed);
    changed.*field = static_cast<std::remove_reference_t<decltype(changed.*field)>>(value);
    std::memcpy(section(index), &changed, sizeof changed);
  };
  std::size_t asked = 0;
  SECTION("none at all") {
    for (const std::string_view text : {std::string_view{""}, std::string_view{"#!/bin/sh\n"}}) {
      file = text;
      CHECK_FALSE(elf_function_names(reader(file), addresses));
    }
  }
  SECTION("a table without an end") {
    change(ElfImage::table, &Elf64_Shdr::sh_size, ~0ULL);
    CHECK(elf_function_names(reader(file, &asked), addresses) == Names{"first"});
    CHECK(asked < std::size_t{1} << 20);
  }
  SECTION("entries of another size, or of none") {
    change(ElfImage::table, &Elf64_Shdr::sh_entsize, GENERATE(0, 1, 16, 25));
    CHECK(elf_function_names(reader(file), addresses) == Names{""});
  }
  SECTION("names in a section that is none, or no table of names") {
    change(ElfImage::table, &Elf64_Shdr::sh_link, GENERATE(0, 1, 5000, 1 << 30));
    CHECK(elf_function_names(reader(file), addresses) == Names{""});
  }
  SECTION("a place beyond all files") {
    change(ElfImage::table, &Elf64_Shdr::sh_offset, GENERATE(1ULL << 62, ~0ULL - 10));
    CHECK(elf_function_names(reader(file), addresses) == Names{""});
  }
  SECTION("cut anywhere") {
    for (std::size_t size = 0; size < file.size(); ++size) {
      const std::string cut = file.substr(0, size);
      const auto names = elf_function_names(reader(cut), addresses);
      if (names) CHECK(names->size() == 1);
    }
  }
}

TEST_CASE("names have their limits", "[unit][elf_symbols]") {
  const auto length_of = [](std::size_t length) {
    return name_at(0x1000, {{std::string(length, 'n'), 0x1000, 16}}).size();
  };
  CHECK(length_of(elf_name_bytes_max) == elf_name_bytes_max);
  CHECK(length_of(elf_name_bytes_max + 1) == elf_name_bytes_max);
  SECTION("also together") {
    ElfImage image;
    image.symbols = {{std::string(elf_name_bytes_max, 'n'), 0x1000, 1 << 20}};
    const std::vector<std::uint64_t> addresses(elf_names_bytes_max / elf_name_bytes_max + 1, 0x1000);
    const Names names = names_in(image, addresses);
    CHECK(names.front().size() == elf_name_bytes_max);
    CHECK(names[names.size() - 2].size() == elf_name_bytes_max);
    CHECK(names.back().empty());
  }
}

TEST_CASE("symbols that all lie over all addresses end the search", "[unit][elf_symbols]") {
  ElfImage image;
  const std::size_t addresses = 4096;
  image.symbols.assign(elf_comparisons_max / addresses + 1, {"over_all", 0x1000, 1 << 20});
  const std::vector<std::uint64_t> wanted(addresses, 0x1000);
  CHECK(names_in(image, wanted) == Names(addresses, "over_all"));
  image.symbols.push_back({"better", 0x1000, 16});  // would be chosen
  CHECK(names_in(image, wanted).front() == "over_all");
}
