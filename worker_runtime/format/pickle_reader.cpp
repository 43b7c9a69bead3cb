#include "worker_runtime/format/pickle_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <deque>
#include <torchup/error.hpp>
#include <unordered_map>
#include <utility>
#include <variant>

#include "worker_runtime/format/torch_dtypes.hpp"

namespace torchup {

namespace {

// Texts are parts of the pickle; what is larger than a word lies in the reader, and values refer to it by its place. So
// a value is small, sharing costs nothing, and neither a cycle nor a deep nest needs care when all of it goes.
enum class Global : std::size_t {};
enum class Storage : std::size_t {};
enum class Tensor : std::size_t {};
enum class List : std::size_t {};  // lists, tuples and argument lists alike
enum class Dictionary : std::size_t {};
using Value = std::variant<std::monostate, bool, std::int64_t, double, std::string_view, Global, Storage, Tensor, List,
                           Dictionary>;
using Values = std::vector<Value>;
using Entries = std::vector<std::pair<Value, Value>>;

/// A function or class that the pickle mentions.
struct Name {
  std::string_view module, name;
  bool is(std::string_view wanted_module, std::string_view wanted_name) const {
    return module == wanted_module && name == wanted_name;
  }
};

constexpr std::uint64_t storage_bytes_max = std::uint64_t{1} << 60;

struct StoredNumbers {
  std::string_view key;
  std::uint64_t bytes;
  const TorchDtype* dtype;  // null: bytes, the tensor says what they are
};

[[noreturn]] void broken(const std::string& what) { throw Error{"its pickle is broken: " + what}; }

template <class T>
T as(const Value& value, const char* wanted) {
  const T* const found = std::get_if<T>(&value);
  if (!found) broken(fmt::format("something is not {}", wanted));
  return *found;
}

class Reader {
 public:
  explicit Reader(std::string_view pickle) : rest_{pickle} {
    if (pickle.size() > pickle_bytes_max)
      broken(fmt::format("it has {} bytes, more than {}", pickle.size(), pickle_bytes_max));
  }

  std::map<std::string, PickledTensor> read() {
    for (;;) {
      const char opcode = take(1)[0];
      if (opcode == '.') break;
      step(opcode);
    }
    collect(pop(), 0);
    return std::move(found_);
  }

 private:
  using Operation = void (*)(Reader&);
  static const std::array<Operation, 256> operations;

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
  std::string_view line() {
    const std::size_t end = rest_.find('\n');
    if (end == std::string_view::npos) broken("a line does not end");
    const std::string_view text = take(end);
    take(1);
    return text;
  }

  // Everything that takes memory is counted, here alone.
  void count_value() {
    if (++values_ > pickle_values_max) broken(fmt::format("it holds more than {} values", pickle_values_max));
  }
  void push(Value value) {
    count_value();
    stack_.push_back(value);
  }
  Value pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) broken("its stack is empty");
    const Value value = stack_.back();
    stack_.pop_back();
    return value;
  }
  const Value& top() const {
    if (stack_.empty()) broken("its stack is empty");
    return stack_.back();
  }
  Values pop_to_mark() {
    if (marks_.empty()) broken("a mark is missing");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    Values values{begin, stack_.end()};
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return values;
  }
  void mark() {
    count_value();
    marks_.push_back(stack_.size());
  }

  template <class Reference, class Arena, class Content>
  static Reference keep(Arena& arena, Content content) {
    arena.push_back(std::move(content));
    return Reference{arena.size() - 1};
  }
  Values& list(const Value& value) { return lists_[static_cast<std::size_t>(as<List>(value, "a list"))]; }
  Entries& dictionary(const Value& value) {
    return dictionaries_[static_cast<std::size_t>(as<Dictionary>(value, "a dictionary"))];
  }
  const Name& name(const Value& value, const char* wanted) const {
    return names_[static_cast<std::size_t>(as<Global>(value, wanted))];
  }
  std::vector<std::int64_t> dimensions(const Value& value) {
    const Values& values = list(value);
    if (values.size() > pickle_dimensions_max)
      broken(fmt::format("a tensor has {} dimensions, more than {}", values.size(), pickle_dimensions_max));
    std::vector<std::int64_t> result;
    for (const Value& element : values) {
      count_value();  // many tensors may share one list, and each keeps its own copy
      result.push_back(as<std::int64_t>(element, "a number"));
    }
    return result;
  }

  void push_tuple(std::size_t size) {
    Values values(size);
    for (std::size_t i = size; i-- > 0;) values[i] = pop();
    push_list(std::move(values));
  }
  void set_item() {
    const Value value = pop(), key = pop();
    set_items({key, value});
  }
  void set_items(const Values& values) {
    if (values.size() % 2 != 0) broken("a key without a value");
    Entries& entries = dictionary(top());
    for (std::size_t i = 0; i < values.size(); i += 2) entries.emplace_back(values[i], values[i + 1]);
  }
  void memoize(std::uint64_t index) {
    count_value();
    memo_[index] = top();
  }
  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end()) broken("it refers to what is not there");
    push(found->second);
  }
  void append(const Values& values) {
    Values& target = list(top());
    target.insert(target.end(), values.begin(), values.end());
  }

  void step(char opcode) {
    const Operation operation = operations[static_cast<unsigned char>(opcode)];
    if (!operation)
      broken(fmt::format("opcode {} has no place in a file of weights", static_cast<unsigned char>(opcode)));
    operation(*this);
  }

  /// What each opcode does, null where it is refused. The names are those of pickletools.py.
  static constexpr std::array<Operation, 256> make_operations() {
    std::array<Operation, 256> all{};
    const auto on = [&](char opcode, Operation operation) { all[static_cast<unsigned char>(opcode)] = operation; };
    on('\x80', [](Reader& r) { r.take(1); });                                          // PROTO
    on('\x95', [](Reader& r) { r.take(8); });                                          // FRAME
    on('(', [](Reader& r) { r.mark(); });                                              // MARK
    on('N', [](Reader& r) { r.push(std::monostate{}); });                              // NONE
    on('\x88', [](Reader& r) { r.push(true); });                                       // NEWTRUE
    on('\x89', [](Reader& r) { r.push(false); });                                      // NEWFALSE
    on('K', [](Reader& r) { r.push(std::int64_t{r.number<std::uint8_t>()}); });        // BININT1
    on('M', [](Reader& r) { r.push(std::int64_t{r.number<std::uint16_t>()}); });       // BININT2
    on('J', [](Reader& r) { r.push(std::int64_t{r.number<std::int32_t>()}); });        // BININT
    on('\x8a', [](Reader& r) { r.push(r.long_number(r.number<std::uint8_t>())); });    // LONG1
    on('G', [](Reader& r) { r.push_double(); });                                       // BINFLOAT
    on('X', [](Reader& r) { r.push(r.take(r.number<std::uint32_t>())); });             // BINUNICODE
    on('\x8c', [](Reader& r) { r.push(r.take(r.number<std::uint8_t>())); });           // SHORT_BINUNICODE
    on('}', [](Reader& r) { r.push(keep<Dictionary>(r.dictionaries_, Entries{})); });  // EMPTY_DICT
    on(']', [](Reader& r) { r.push_list({}); });                                       // EMPTY_LIST
    on(')', [](Reader& r) { r.push_list({}); });                                       // EMPTY_TUPLE
    on('\x85', [](Reader& r) { r.push_tuple(1); });                                    // TUPLE1
    on('\x86', [](Reader& r) { r.push_tuple(2); });                                    // TUPLE2
    on('\x87', [](Reader& r) { r.push_tuple(3); });                                    // TUPLE3
    on('t', [](Reader& r) { r.push_list(r.pop_to_mark()); });                          // TUPLE
    on('a', [](Reader& r) { r.append({r.pop()}); });                                   // APPEND
    on('e', [](Reader& r) { r.append(r.pop_to_mark()); });                             // APPENDS
    on('s', [](Reader& r) { r.set_item(); });                                          // SETITEM
    on('u', [](Reader& r) { r.set_items(r.pop_to_mark()); });                          // SETITEMS
    on('q', [](Reader& r) { r.memoize(r.number<std::uint8_t>()); });                   // BINPUT
    on('r', [](Reader& r) { r.memoize(r.number<std::uint32_t>()); });                  // LONG_BINPUT
    on('\x94', [](Reader& r) { r.memoize(r.memo_.size()); });                          // MEMOIZE
    on('h', [](Reader& r) { r.recall(r.number<std::uint8_t>()); });                    // BINGET
    on('j', [](Reader& r) { r.recall(r.number<std::uint32_t>()); });                   // LONG_BINGET
    on('c', [](Reader& r) { r.push_name_of_lines(); });                                // GLOBAL
    on('\x93', [](Reader& r) { r.push_name_of_texts(); });                             // STACK_GLOBAL
    on('Q', [](Reader& r) { r.push_storage(); });                                      // BINPERSID
    on('R', [](Reader& r) { r.push_result(); });                                       // REDUCE
    on('b', [](Reader& r) { r.pop(), r.dictionary(r.top()); });  // BUILD: a state_dict's _metadata
    return all;
  }

  void push_double() { push(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))); }  // big endian
  void push_list(Values values) { push(keep<List>(lists_, std::move(values))); }
  void push_name_of_lines() {
    const std::string_view module = line();
    push(keep<Global>(names_, Name{module, line()}));
  }
  void push_name_of_texts() {
    const Value name = pop(), module = pop();
    push(keep<Global>(names_, Name{as<std::string_view>(module, "a name"), as<std::string_view>(name, "a name")}));
  }
  void push_storage() {
    const Value id = pop();
    push(open_storage(list(id)));
  }
  void push_result() {
    const Value arguments = pop(), function = pop();
    push(call(name(function, "a function"), arguments));
  }

  std::int64_t long_number(std::uint8_t size) {
    if (size > 8) broken("a number is too large");
    const std::string_view bytes = take(size);
    std::int64_t value = size > 0 && (bytes[size - 1] & 0x80) != 0 ? -1 : 0;
    std::memcpy(&value, bytes.data(), size);
    return value;
  }

  /// ('storage', class, key, device, number of elements)
  Storage open_storage(const Values& id) {
    if (id.size() != 5 || as<std::string_view>(id[0], "a text") != "storage")
      broken("a storage is described in another way");
    const Name& kind = name(id[1], "a class");
    StoredNumbers stored{as<std::string_view>(id[2], "a text"), 0, nullptr};
    if (!kind.is("torch.storage", "UntypedStorage")) {
      const auto found = std::ranges::find(torch_dtypes, kind.name, &TorchDtype::storage);
      if (kind.module != "torch" || kind.name.empty() || found == torch_dtypes.end())
        broken(fmt::format("a storage is a {}.{}", kind.module, kind.name));
      stored.dtype = &*found;
    }
    if (stored.key.size() > pickle_key_bytes_max)
      broken(fmt::format("a storage's key has {} bytes, more than {}", stored.key.size(), pickle_key_bytes_max));
    const auto count = as<std::int64_t>(id[4], "a number");
    const std::uint64_t size = stored.dtype ? stored.dtype->bytes : 1;
    if (count < 0 || static_cast<std::uint64_t>(count) > storage_bytes_max / size)
      broken("a storage's size is impossible");
    stored.bytes = static_cast<std::uint64_t>(count) * size;
    const auto [known, fresh] = storage_sizes_.try_emplace(stored.key, stored.bytes);
    if (!fresh && known->second != stored.bytes) broken(fmt::format("storage {} has two sizes", stored.key));
    return keep<Storage>(storages_, stored);
  }

  /// (storage, offset, sizes, strides, requires_grad, hooks[, dtype][, metadata])
  Tensor rebuild_tensor(const Values& arguments, bool names_dtype) {
    if (arguments.size() < (names_dtype ? 7U : 6U)) broken("a tensor's description is too short");
    const StoredNumbers& storage = storages_[static_cast<std::size_t>(as<Storage>(arguments[0], "a storage"))];
    const TorchDtype* dtype = storage.dtype;
    if (names_dtype) {
      const Name& wanted = name(arguments[6], "a dtype");
      const auto found = std::ranges::find(torch_dtypes, wanted.name, &TorchDtype::name);
      if (wanted.module != "torch" || found == torch_dtypes.end())
        broken(fmt::format("a tensor's dtype is {}.{}", wanted.module, wanted.name));
      dtype = &*found;
    }
    if (!dtype) broken("a tensor has no dtype");
    PickledTensor tensor{.storage = std::string{storage.key},
                         .storage_bytes = storage.bytes,
                         .dtype = std::string{dtype->name},
                         .offset = as<std::int64_t>(arguments[1], "a number"),
                         .sizes = dimensions(arguments[2]),
                         .strides = dimensions(arguments[3])};
    if (!lies_within(tensor, static_cast<std::int64_t>(storage.bytes / dtype->bytes)))
      broken("a tensor reaches beyond its storage");
    if (const std::size_t at = names_dtype ? 7 : 6; arguments.size() > at) take_metadata(arguments[at], tensor);
    return keep<Tensor>(tensors_, std::move(tensor));
  }

  /// {"conj": True} and {"neg": True}, of views of other numbers. Whatever else stands there may change them too.
  void take_metadata(const Value& metadata, PickledTensor& tensor) {
    for (const auto& [key, value] : dictionary(metadata)) {
      const std::string_view what = as<std::string_view>(key, "a text");
      if (what != "conj" && what != "neg") broken(fmt::format("a tensor has the unknown property {}", what));
      (what == "conj" ? tensor.conjugated : tensor.negated) = as<bool>(value, "true or false");
    }
  }

  /// Whether the last element is one of the storage's `elements`. Each factor is bounded by them, so that no product
  /// can overflow.
  static bool lies_within(const PickledTensor& tensor, std::int64_t elements) {
    const auto& [key, bytes, dtype, offset, sizes, strides, conjugated, negated] = tensor;
    if (sizes.size() != strides.size() || offset < 0 || offset > elements) return false;
    if (std::ranges::any_of(sizes, [](std::int64_t size) { return size < 0; })) return false;
    if (std::ranges::count(sizes, 0) > 0) return true;
    std::int64_t last = offset;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] == 1 || strides[i] == 0) continue;
      if (strides[i] < 0 || sizes[i] - 1 > elements || strides[i] > elements / (sizes[i] - 1)) return false;
      last += (sizes[i] - 1) * strides[i];
      if (last >= elements) return false;
    }
    return last < elements;
  }

  Value call(const Name& function, const Value& given) {
    const Values& arguments = list(given);
    if (function.is("torch._utils", "_rebuild_tensor_v2")) return rebuild_tensor(arguments, false);
    if (function.is("torch._utils", "_rebuild_tensor_v3")) return rebuild_tensor(arguments, true);
    if (function.is("torch._utils", "_rebuild_parameter") && !arguments.empty())
      return as<Tensor>(arguments[0], "a tensor");
    if (function.is("collections", "OrderedDict") && arguments.empty())
      return keep<Dictionary>(dictionaries_, Entries{});
    if (function.is("torch", "Size") && arguments.size() == 1) return arguments[0];
    if (function.is("torch", "device")) return std::monostate{};
    throw Error{fmt::format("it holds a {}.{}, which a file of weights has no need of. Save model.state_dict() instead",
                            function.module, function.name)};
  }

  /// Every way to a tensor gives it a name, so what is shared is visited more than once: the visits are counted.
  void collect(const Value& value, int depth) {
    if (depth > pickle_depth_max) broken("its dictionaries are nested too deep");
    if (const Tensor* tensor = std::get_if<Tensor>(&value)) {
      return find(tensors_[static_cast<std::size_t>(*tensor)]);
    }
    if (!std::holds_alternative<Dictionary>(value)) return;
    for (const auto& [key, inner] : dictionary(value)) {
      if (++visits_ > pickle_visits_max)
        broken(fmt::format("its dictionaries have more than {} entries", pickle_visits_max));
      const std::string_view* const text = std::get_if<std::string_view>(&key);
      if (!text || !(std::holds_alternative<Tensor>(inner) || std::holds_alternative<Dictionary>(inner))) continue;
      const std::size_t here = path_.size();
      name_bytes_ += here + 1 + text->size();
      if (name_bytes_ > pickle_names_bytes_max)
        broken(fmt::format("its names have more than {} bytes", pickle_names_bytes_max));
      if (here > 0) path_ += '.';
      path_ += *text;
      collect(inner, depth + 1);
      path_.resize(here);
    }
  }

  /// A view of what its dtype has not would be found out only when its numbers are wanted, in the middle of a copy.
  void check_view(const PickledTensor& tensor) const {
    if (tensor.conjugated && !tensor.dtype.starts_with("complex"))
      broken(fmt::format("tensor {} is marked as conjugated, and {} has no conjugates", path_, tensor.dtype));
    if (tensor.negated && !std::ranges::find(torch_dtypes, tensor.dtype, &TorchDtype::name)->negates)
      broken(fmt::format("tensor {} is marked as negated, and {} has no other sign", path_, tensor.dtype));
  }

  /// A tensor of few bytes in the pickle may have many names, and each keeps its own copy.
  void find(const PickledTensor& tensor) {
    check_view(tensor);
    shape_numbers_ += tensor.sizes.size() + tensor.strides.size();
    if (shape_numbers_ > pickle_shape_numbers_max)
      broken(fmt::format("its tensors have more than {} sizes and strides", pickle_shape_numbers_max));
    found_[path_] = tensor;
  }

  std::string_view rest_;
  std::size_t values_ = 0, visits_ = 0, name_bytes_ = 0, shape_numbers_ = 0;
  std::string path_;  // to what is being collected
  std::map<std::string, PickledTensor> found_;
  Values stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, Value> memo_;
  std::unordered_map<std::string_view, std::uint64_t> storage_sizes_;
  std::deque<Name> names_;
  std::deque<StoredNumbers> storages_;
  std::deque<PickledTensor> tensors_;
  std::deque<Values> lists_;
  std::deque<Entries> dictionaries_;
};

constexpr std::array<Reader::Operation, 256> Reader::operations = make_operations();

}  // namespace

std::map<std::string, PickledTensor> tensors_in_pickle(std::string_view pickle) { return Reader{pickle}.read(); }

}  // namespace torchup
