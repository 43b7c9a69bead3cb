#include "worker_runtime/format/pickle_reader.hpp"

#include <catch2/catch.hpp>
#include <torchup/error.hpp>

using namespace torchup;
using Catch::Contains;

namespace {

const std::string begin{"\x80\x02", 2}, end{"."};

std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (; bytes > 0; --bytes, value >>= 8) text.push_back(static_cast<char>(value & 0xFF));
  return text;
}
std::string text(const std::string& value) { return "X" + little(value.size(), 4) + value; }
std::string integer(std::int64_t value) { return "\x8a\x08" + little(static_cast<std::uint64_t>(value), 8); }
std::string tuple(const std::string& elements) { return "(" + elements + "t"; }
std::string repeated(const std::string& part, std::size_t times) {
  std::string all;
  for (; times > 0; --times) all += part;
  return all;
}

struct Shape {
  std::int64_t count = 6, offset = 0;
  std::vector<std::int64_t> sizes{2, 3}, strides{3, 1};
  std::string key = "0", kind = "FloatStorage", metadata = "";
};
std::string tensor(const Shape& shape = {}) {
  const auto numbers = [](const std::vector<std::int64_t>& values) {
    std::string all;
    for (const auto value : values) all += integer(value);
    return tuple(all);
  };
  const std::string storage =
      tuple(text("storage") + "ctorch\n" + shape.kind + "\n" + text(shape.key) + text("cpu") + integer(shape.count));
  return "ctorch._utils\n_rebuild_tensor_v2\n" +
         tuple(storage + "Q" + integer(shape.offset) + numbers(shape.sizes) + numbers(shape.strides) +
               "\x89"
               "ccollections\nOrderedDict\n)R" +
               shape.metadata) +
         "R";
}
std::string dictionary(const std::string& items) { return "}(" + items + "u"; }

/// A dictionary in a dictionary in …, `depth` of them around a tensor.
std::string nested(int depth) {
  std::string inner = tensor();
  for (; depth > 0; --depth) inner = dictionary(text("d") + inner);
  return inner;
}

auto read(const std::string& content) { return tensors_in_pickle(begin + content + end); }

}  // namespace

TEST_CASE("tensors come with dotted names, and whatever else is there is passed over", "[unit][pickle]") {
  const auto found = read(dictionary(text("weight") + tensor() + text("epoch") + integer(3) + integer(5) + tensor() +
                                     text("inner") + dictionary(text("bias") + tensor({.sizes = {}, .strides = {}}))));
  REQUIRE(found.size() == 2);
  REQUIRE(found.at("weight") ==
          PickledTensor{.storage = "0", .storage_bytes = 24, .dtype = "float32", .sizes = {2, 3}, .strides = {3, 1}});
  REQUIRE(found.at("inner.bias").sizes.empty());
}

TEST_CASE("a tensor lies in its storage", "[unit][pickle]") {
  const auto refused = [](const Shape& shape) {
    REQUIRE_THROWS_WITH(read(tensor(shape)), Contains("beyond its storage"));
  };
  constexpr auto huge = std::int64_t{1} << 62;
  REQUIRE(read(tensor({.count = 7, .offset = 1})).at("").offset == 1);
  refused({.offset = 1});
  refused({.offset = -1});
  refused({.sizes = {2, 4}});
  refused({.sizes = {-1, 3}});
  refused({.strides = {-3, 1}});
  refused({.strides = {1}});
  refused({.sizes = {huge, huge}, .strides = {huge, huge}});
  REQUIRE(read(tensor({.count = 0, .sizes = {0, huge}, .strides = {1, 1}})).size() == 1);
  REQUIRE_THROWS_WITH(read(tensor({.count = -1})), Contains("size is impossible"));
  REQUIRE_THROWS_WITH(read(tensor({.count = huge})), Contains("size is impossible"));
  REQUIRE_THROWS_WITH(read(tensor({.kind = "SecretStorage"})), Contains("a storage is a torch.SecretStorage"));
  REQUIRE_THROWS_WITH(read(dictionary(text("a") + tensor() + text("b") + tensor({.count = 7}))), Contains("two sizes"));
}

TEST_CASE("a view that is conjugated or negated is known as one", "[unit][pickle]") {
  const std::string yes{"\x88"};
  const auto with = [&](const std::string& what, const std::string& value, const std::string& kind = "FloatStorage") {
    return read(tensor({.kind = kind, .metadata = dictionary(text(what) + value)})).at("");
  };
  REQUIRE(with("neg", yes).negated);
  REQUIRE_FALSE(with("neg", yes).conjugated);
  REQUIRE_FALSE(with("neg", "\x89").negated);
  REQUIRE(with("conj", yes, "ComplexFloatStorage").conjugated);
  REQUIRE_THROWS_WITH(with("tilted", yes), Contains("unknown property tilted"));
  REQUIRE_THROWS_WITH(with("neg", integer(1)), Contains("not true or false"));
  REQUIRE_THROWS_WITH(read(tensor({.metadata = integer(1)})), Contains("not a dictionary"));
}

TEST_CASE("a view that its dtype cannot be is refused by the tensor's name", "[unit][pickle]") {
  const std::string yes{"\x88"};
  const auto marked = [&](const std::string& what, const std::string& kind) {
    const std::string metadata = dictionary(text(what) + yes);
    return read(dictionary(text("layer") + dictionary(text("mask") + tensor({.kind = kind, .metadata = metadata}))));
  };
  for (const char* kind : {"FloatStorage", "HalfStorage", "LongStorage", "CharStorage", "ByteStorage"}) {
    REQUIRE(marked("neg", kind).at("layer.mask").negated);
    REQUIRE_THROWS_WITH(marked("conj", kind), Contains("tensor layer.mask is marked as conjugated"));
  }
  REQUIRE_THROWS_WITH(marked("neg", "BoolStorage"), Contains("tensor layer.mask is marked as negated, and bool"));
  REQUIRE_THROWS_WITH(marked("conj", "BoolStorage"), Contains("tensor layer.mask is marked as conjugated, and bool"));
  // What only an untyped storage holds is named by the tensor.
  for (const std::string dtype : {"uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "int16"}) {
    const std::string storage =
        tuple(text("storage") + "ctorch.storage\nUntypedStorage\n" + text("0") + text("cpu") + integer(8));
    const std::string view = "ctorch._utils\n_rebuild_tensor_v3\n" +
                             tuple(storage + "Q" + integer(0) + tuple(integer(1)) + tuple(integer(1)) +
                                   "\x89"
                                   "ccollections\nOrderedDict\n)R"
                                   "ctorch\n" +
                                   dtype + "\n" + dictionary(text("neg") + yes)) +
                             "R";
    const auto found = [&] { return read(dictionary(text("mask") + view)).at("mask"); };
    if (dtype == "int16")
      REQUIRE(found().negated);
    else
      REQUIRE_THROWS_WITH(found(), Contains("tensor mask is marked as negated, and " + dtype));
  }
}

TEST_CASE("what would run code is named and not run", "[unit][pickle]") {
  REQUIRE_THROWS_WITH(read("cposix\nsystem\n" + tuple(text("true")) + "R"), Contains("posix.system"));
}

TEST_CASE("limits of a pickle, at each and one past it", "[unit][pickle]") {
  SECTION("depth") {
    REQUIRE(read(nested(pickle_depth_max)).size() == 1);
    REQUIRE_THROWS_WITH(read(nested(pickle_depth_max + 1)), Contains("nested too deep"));
  }
  SECTION("values") {
    // One dictionary and as many lists, which stay on the stack.
    REQUIRE(tensors_in_pickle(begin + repeated("]", pickle_values_max - 1) + "}" + end).empty());
    REQUIRE_THROWS_WITH(tensors_in_pickle(begin + repeated("]", pickle_values_max) + "}" + end),
                        Contains("more than 4194304 values"));
  }
  SECTION("bytes") {
    std::string large = begin + text(std::string(pickle_bytes_max - begin.size() - 6, 'x')) + end;
    REQUIRE(large.size() == pickle_bytes_max);
    REQUIRE(tensors_in_pickle(large).empty());
    large.push_back('.');
    REQUIRE_THROWS_WITH(tensors_in_pickle(large), Contains("more than 67108864"));
  }
  SECTION("entries looked at") {
    const auto entries = [](std::size_t count, const std::string& value) {
      return "}(" + repeated("h\2" + value, count) + "u";
    };
    const auto shared = [&](std::size_t outer) {
      // The key and the inner dictionary are noted first, in a tuple; the outer dictionary names the inner one again
      // and again.
      return "(" + text("k") + "q\2" + entries(1023, "N") + "q\3" + "t" + "}(" + repeated("h\2h\3", outer) + "u";
    };
    REQUIRE(read(shared(1024)).empty());  // 1024 + 1024 * 1023
    REQUIRE_THROWS_WITH(read(shared(1025)), Contains("more than 1048576 entries"));
  }
  SECTION("bytes of names") {
    const auto shared = [&](std::size_t key_bytes) {
      return "(" + text(std::string(key_bytes, 'k')) + "q\2" + tensor() + "q\4" + "t" + "}(" +
             repeated("h\2h\4", 1024) + "u";
    };
    REQUIRE(read(shared(pickle_names_bytes_max / 1024 - 1)).size() == 1);
    REQUIRE_THROWS_WITH(read(shared(pickle_names_bytes_max / 1024)), Contains("its names have more than"));
  }
  SECTION("dimensions") {
    const auto of = [](std::size_t dimensions) {
      return tensor({.count = 1,
                     .sizes = std::vector<std::int64_t>(dimensions, 1),
                     .strides = std::vector<std::int64_t>(dimensions, 1)});
    };
    REQUIRE(read(of(pickle_dimensions_max)).at("").sizes.size() == pickle_dimensions_max);
    REQUIRE_THROWS_WITH(read(of(pickle_dimensions_max + 1)), Contains("more than 64"));
  }
  SECTION("sizes and strides under all names") {
    const std::vector<std::int64_t> ones(pickle_dimensions_max, 1);
    const auto shared = [&](std::size_t names) {
      return "(" + text("k") + "q\2" + tensor({.count = 1, .sizes = ones, .strides = ones}) + "q\4" + "t" + "}(" +
             repeated("h\2h\4", names) + "u";
    };
    constexpr std::size_t names_max = pickle_shape_numbers_max / (2 * pickle_dimensions_max);
    REQUIRE(read(shared(names_max)).size() == 1);
    REQUIRE_THROWS_WITH(read(shared(names_max + 1)), Contains("more than 4194304 sizes and strides"));
  }
  SECTION("a storage's key") {
    REQUIRE(read(tensor({.key = std::string(pickle_key_bytes_max, '1')})).size() == 1);
    REQUIRE_THROWS_WITH(read(tensor({.key = std::string(pickle_key_bytes_max + 1, '1')})), Contains("more than 64"));
  }
}

TEST_CASE("hostile pickles end in an error, in little time and memory", "[unit][pickle]") {
  SECTION("tuples in tuples, as many as there is room for") {
    REQUIRE(read(")" + repeated("\x85", 3'000'000)).empty());
  }
  SECTION("levels of dictionaries that name the next one twice") {
    std::string levels = dictionary("") + "q\1";
    for (int level = 0; level < 31; ++level)
      levels = "(" + levels + "t" + dictionary(text("a") + "h\1" + text("b") + "h\1") + "q\1";
    REQUIRE_THROWS_WITH(read(levels), Contains("more than 1048576 entries"));
  }
  SECTION("a long text referred to again and again") {
    REQUIRE(read("(" + text(std::string(1'000'000, 'x')) + "q\1" + repeated("h\1", 1'000'000) + "t").empty());
  }
  SECTION("a dictionary in itself") {
    REQUIRE_THROWS_WITH(read("}q\1(" + text("a") + "h\1u"), Contains("nested too deep"));
  }
  SECTION("a list in itself") { REQUIRE(read("]q\1h\1a").empty()); }
  SECTION("damage of every kind") {
    for (const char* bad : {"s", "(", "h\7",
                            "X\xff\xff\xff\x7f"
                            "ab",
                            "R", "}R", "i", "t", "}}e", "a", "]N}u", "Q", "K", "b"})
      REQUIRE_THROWS_AS(read(bad), Error);
    REQUIRE_THROWS_AS(tensors_in_pickle(""), Error);
    REQUIRE_THROWS_AS(tensors_in_pickle("."), Error);
  }
}
