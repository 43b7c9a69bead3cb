#include "worker_runtime/pickle_reader.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <torchup/error.hpp>
#include <unordered_map>
#include <variant>
#include <vector>

namespace torchup {

namespace {

struct Value;
using List = std::vector<Value>;  // lists, tuples and argument lists alike
using Entries = std::vector<std::pair<Value, Value>>;

/// Something with a name in Python: a function or class that the pickle mentions.
struct Global {
  std::string name;
};
struct StoredTensor {  // a persistent id: where a tensor's numbers are
  torch::Storage storage;
  std::optional<torch::ScalarType> dtype;  // none: bytes, the tensor says what they are
};
/// A value of the pickle. Containers are shared, as in Python: the memo refers to them while they are filled.
struct Value {
  std::variant<std::monostate, bool, std::int64_t, double, std::string, torch::Tensor, StoredTensor, Global,
               std::shared_ptr<List>, std::shared_ptr<Entries>>
      is;
};

struct Dtype {
  const char* storage;  // class of a typed storage
  const char* name;     // of torch.<name>
  torch::ScalarType dtype;
};
constexpr std::array storage_dtypes{
    Dtype{"torch FloatStorage", "torch float32", torch::kFloat32},
    Dtype{"torch DoubleStorage", "torch float64", torch::kFloat64},
    Dtype{"torch HalfStorage", "torch float16", torch::kFloat16},
    Dtype{"torch BFloat16Storage", "torch bfloat16", torch::kBFloat16},
    Dtype{"torch LongStorage", "torch int64", torch::kInt64},
    Dtype{"torch IntStorage", "torch int32", torch::kInt32},
    Dtype{"torch ShortStorage", "torch int16", torch::kInt16},
    Dtype{"torch CharStorage", "torch int8", torch::kInt8},
    Dtype{"torch ByteStorage", "torch uint8", torch::kUInt8},
    Dtype{"torch BoolStorage", "torch bool", torch::kBool},
    Dtype{"", "torch uint16", torch::kUInt16},
    Dtype{"", "torch uint32", torch::kUInt32},
    Dtype{"", "torch uint64", torch::kUInt64},
    Dtype{"", "torch float8_e4m3fn", torch::kFloat8_e4m3fn},
    Dtype{"", "torch float8_e5m2", torch::kFloat8_e5m2},
    Dtype{"torch ComplexFloatStorage", "torch complex64", torch::kComplexFloat},
};

[[noreturn]] void broken(const std::string& what) { throw Error{"its pickle is broken: " + what}; }

template <class T>
T& as(Value& value, const char* wanted) {
  T* const found = std::get_if<T>(&value.is);
  if (found == nullptr) broken(std::string{"something is not "} + wanted);
  return *found;
}
List& as_list(Value& value) { return *as<std::shared_ptr<List>>(value, "a list"); }
std::int64_t as_int(Value& value) { return as<std::int64_t>(value, "a number"); }
std::vector<std::int64_t> as_ints(Value& value) {
  std::vector<std::int64_t> result;
  for (Value& element : as_list(value)) result.push_back(as_int(element));
  return result;
}

class Reader {
 public:
  Reader(std::string_view pickle, const StorageReader& storage) : rest_{pickle}, storage_{storage} {}

  Value read() {
    for (;;) {
      const char opcode = take(1)[0];
      if (opcode == '.') return pop();
      step(opcode);
    }
  }

 private:
  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) broken("it ends too early");
    const std::string_view bytes = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return bytes;
  }
  template <class T>
  T number() {
    static_assert(std::endian::native == std::endian::little);
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) broken("a line does not end");
    const std::string text{take(end)};
    take(1);
    return text;
  }

  template <class T>
  void push(T value) {
    stack_.push_back(Value{std::move(value)});
  }
  Value pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) broken("its stack is empty");
    Value value = std::move(stack_.back());
    stack_.pop_back();
    return value;
  }
  Value& top() {
    if (stack_.empty()) broken("its stack is empty");
    return stack_.back();
  }
  List pop_to_mark() {
    if (marks_.empty()) broken("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    List values{std::make_move_iterator(begin), std::make_move_iterator(stack_.end())};
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void push_tuple(std::size_t size) {
    auto list = std::make_shared<List>(size);
    for (std::size_t i = size; i-- > 0;) (*list)[i] = pop();
    push(std::move(list));
  }
  void set_items(List values) {
    if (values.size() % 2 != 0) broken("a key without a value");
    Entries& entries = *as<std::shared_ptr<Entries>>(top(), "a dictionary");
    for (std::size_t i = 0; i < values.size(); i += 2)
      entries.emplace_back(std::move(values[i]), std::move(values[i + 1]));
  }
  void memoize(std::uint64_t index) { memo_[index] = top(); }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) broken("it refers to what is not there");
    stack_.push_back(found->second);
  }

  void step(char opcode) {
    switch (opcode) {
      case '\x80':
        take(1);
        break;  // PROTO
      case '\x95':
        take(8);
        break;  // FRAME
      case '(':
        marks_.push_back(stack_.size());
        break;  // MARK
      case 'N':
        push(std::monostate{});
        break;  // NONE
      case '\x88':
        push(true);
        break;  // NEWTRUE
      case '\x89':
        push(false);
        break;  // NEWFALSE
      case 'K':
        push(std::int64_t{number<std::uint8_t>()});
        break;  // BININT1
      case 'M':
        push(std::int64_t{number<std::uint16_t>()});
        break;  // BININT2
      case 'J':
        push(std::int64_t{number<std::int32_t>()});
        break;  // BININT
      case '\x8a':
        push(long_number(number<std::uint8_t>()));
        break;  // LONG1
      case 'G':
        push(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>())));
        break;  // BINFLOAT, big endian
      case 'X':
        push(std::string{take(number<std::uint32_t>())});
        break;  // BINUNICODE
      case '\x8c':
        push(std::string{take(number<std::uint8_t>())});
        break;  // SHORT_BINUNICODE
      case '}':
        push(std::make_shared<Entries>());
        break;   // EMPTY_DICT
      case ']':  // EMPTY_LIST
      case ')':
        push(std::make_shared<List>());
        break;  // EMPTY_TUPLE
      case '\x85':
        push_tuple(1);
        break;  // TUPLE1
      case '\x86':
        push_tuple(2);
        break;  // TUPLE2
      case '\x87':
        push_tuple(3);
        break;  // TUPLE3
      case 't':
        push(std::make_shared<List>(pop_to_mark()));
        break;     // TUPLE
      case 'a': {  // APPEND
        Value value = pop();
        as_list(top()).push_back(std::move(value));
        break;
      }
      case 'e': {  // APPENDS
        List values = pop_to_mark();
        std::ranges::move(values, std::back_inserter(as_list(top())));
        break;
      }
      case 's': {  // SETITEM
        List pair(2);
        pair[1] = pop();
        pair[0] = pop();
        set_items(std::move(pair));
        break;
      }
      case 'u':
        set_items(pop_to_mark());
        break;  // SETITEMS
      case 'q':
        memoize(number<std::uint8_t>());
        break;  // BINPUT
      case 'r':
        memoize(number<std::uint32_t>());
        break;  // LONG_BINPUT
      case '\x94':
        memoize(memo_.size());
        break;  // MEMOIZE
      case 'h':
        recall(number<std::uint8_t>());
        break;  // BINGET
      case 'j':
        recall(number<std::uint32_t>());
        break;     // LONG_BINGET
      case 'c': {  // GLOBAL
        const std::string module = line();
        push(Global{module + " " + line()});
        break;
      }
      case '\x93': {  // STACK_GLOBAL
        Value name = pop();
        Value module = pop();
        push(Global{as<std::string>(module, "a name") + " " + as<std::string>(name, "a name")});
        break;
      }
      case 'Q': {  // BINPERSID
        Value id = pop();
        push(open_storage(as_list(id)));
        break;
      }
      case 'R': {  // REDUCE
        Value arguments = pop();
        Value function = pop();
        stack_.push_back(call(as<Global>(function, "a function").name, as_list(arguments)));
        break;
      }
      case 'b': {  // BUILD: attributes, of a state_dict its _metadata
        pop();
        as<std::shared_ptr<Entries>>(top(), "a dictionary");
        break;
      }
      default:
        broken("opcode " + std::to_string(static_cast<unsigned char>(opcode)) + " has no place in a file of weights");
    }
  }

  std::int64_t long_number(std::uint8_t size) {
    if (size > 8) broken("a number is too large");
    const std::string_view bytes = take(size);
    std::int64_t value = size > 0 && (bytes[size - 1] & 0x80) != 0 ? -1 : 0;
    std::memcpy(&value, bytes.data(), size);
    return value;
  }

  /// ('storage', class, key, device, number of elements)
  StoredTensor open_storage(List& id) {
    if (id.size() != 5 || as<std::string>(id[0], "a text") != "storage")
      broken("a storage is described in another way");
    const std::string& kind = as<Global>(id[1], "a class").name;
    const std::string& key = as<std::string>(id[2], "a text");
    const std::int64_t count = as_int(id[4]);
    StoredTensor stored;
    if (kind != "torch.storage UntypedStorage") {
      const auto found = std::ranges::find(storage_dtypes, kind, &Dtype::storage);
      if (found == storage_dtypes.end() || kind.empty()) broken("a storage is a " + kind);
      stored.dtype = found->dtype;
    }
    const auto size = static_cast<std::uint64_t>(stored.dtype ? c10::elementSize(*stored.dtype) : 1);
    if (count < 0 || static_cast<std::uint64_t>(count) > (std::uint64_t{1} << 60) / size)
      broken("a storage's size is impossible");
    auto& storage = storages_[key];
    if (!storage) storage = storage_(key, static_cast<std::uint64_t>(count) * size);
    if (storage->nbytes() < static_cast<std::uint64_t>(count) * size)
      broken("storage " + key + " is shorter than it says");
    stored.storage = *storage;
    return stored;
  }

  /// (storage, offset, sizes, strides, requires_grad, hooks[, dtype or metadata])
  static torch::Tensor rebuild_tensor(List& arguments, bool dtype_is_last) {
    if (arguments.size() < (dtype_is_last ? 7U : 6U)) broken("a tensor's description is too short");
    auto& [storage, storage_dtype] = as<StoredTensor>(arguments[0], "a storage");
    std::optional<torch::ScalarType> dtype = storage_dtype;
    if (dtype_is_last) {
      const std::string& name = as<Global>(arguments[6], "a dtype").name;
      const auto found =
          std::ranges::find_if(storage_dtypes, [&](const Dtype& candidate) { return name == candidate.name; });
      if (found == storage_dtypes.end()) broken("a tensor's dtype is " + name);
      dtype = found->dtype;
    }
    if (!dtype) broken("a tensor has no dtype");
    const std::int64_t offset = as_int(arguments[1]);
    const std::vector<std::int64_t> sizes = as_ints(arguments[2]);
    const std::vector<std::int64_t> strides = as_ints(arguments[3]);
    // The last element must lie in the storage. Each factor is bounded by it, so that no product can overflow.
    const auto elements = static_cast<std::int64_t>(storage.nbytes() / c10::elementSize(*dtype));
    // The last element must lie in the storage. Each factor is bounded by it, so that no product can overflow.
    bool fits = sizes.size() == strides.size() && offset >= 0 && offset <= elements &&
                std::ranges::all_of(sizes, [](std::int64_t size) { return size >= 0; });
    const bool empty = std::ranges::count(sizes, 0) > 0;
    std::int64_t last = offset;
    for (std::size_t i = 0; fits && !empty && i < sizes.size(); ++i) {
      if (sizes[i] == 1 || strides[i] == 0) continue;
      fits = strides[i] > 0 && sizes[i] - 1 <= elements && strides[i] <= elements / (sizes[i] - 1);
      if (fits) last += (sizes[i] - 1) * strides[i];
      fits = fits && last < elements;
    }
    if (!fits || (!empty && last >= elements)) broken("a tensor reaches beyond its storage");
    return torch::empty({0}, *dtype).set_(storage, offset, sizes, strides);
  }

  static Value call(const std::string& function, List& arguments) {
    if (function == "torch._utils _rebuild_tensor_v2") return {rebuild_tensor(arguments, false)};
    if (function == "torch._utils _rebuild_tensor_v3") return {rebuild_tensor(arguments, true)};
    if (function == "torch._utils _rebuild_parameter" && !arguments.empty())
      return {as<torch::Tensor>(arguments[0], "a tensor")};
    if (function == "collections OrderedDict" && arguments.empty()) return {std::make_shared<Entries>()};
    if (function == "torch Size" && arguments.size() == 1) return arguments[0];
    if (function == "torch device") return {std::monostate{}};
    std::string name = function;
    std::ranges::replace(name, ' ', '.');
    throw Error{"it holds a " + name + ", which a file of weights has no need of. Save model.state_dict() instead"};
  }

  std::string_view rest_;
  const StorageReader& storage_;
  std::vector<Value> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
  std::unordered_map<std::string, std::optional<torch::Storage>> storages_;
};

constexpr int depth_max = 32;

void collect(Value& value, const std::string& name, int depth, std::map<std::string, torch::Tensor>& tensors) {
  if (depth > depth_max) broken("its dictionaries are nested too deep");
  if (const auto* tensor = std::get_if<torch::Tensor>(&value.is)) {
    tensors[name] = *tensor;
  } else if (auto* entries = std::get_if<std::shared_ptr<Entries>>(&value.is)) {
    for (auto& [key, inner] : **entries) {
      if (const auto* text = std::get_if<std::string>(&key.is))
        collect(inner, name.empty() ? *text : name + "." + *text, depth + 1, tensors);
    }
  }
}

}  // namespace

std::map<std::string, torch::Tensor> tensors_in_pickle(std::string_view pickle, const StorageReader& storage) {
  Value value = Reader{pickle, storage}.read();
  std::map<std::string, torch::Tensor> tensors;
  collect(value, "", 0, tensors);
  return tensors;
}

}  // namespace torchup
