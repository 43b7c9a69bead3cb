#include "torchup/weights.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/format/pickle_reader.hpp"
#include "worker_runtime/format/zip_archive.hpp"
#include "worker_runtime/state/crc32.hpp"
#include "worker_runtime/state/file_reader.hpp"
#include "worker_runtime/state/scalar_types.hpp"

namespace torchup {

namespace {

using Tensors = std::map<std::string, torch::Tensor>;

/// A file of torch.save: a zip with data.pkl, byteorder, and the storages as data/0, data/1, …
///
/// Read without LibTorch's own reader, which unpacks the records `version` and `.data/serialization_id` before anybody
/// could ask how large they are: a file of three megabytes made it take four gigabytes.
class Archive {
 public:
  explicit Archive(const std::filesystem::path& path)
      : file_{path}, zip_{file_.bytes(), [this](std::uint64_t offset, char* data,
                                                std::size_t size) { file_.read_at(offset, data, size); }},
        storage_bytes_left_{file_.bytes()} {}

  bool has(std::string_view name) const { return zip_.find(name) != nullptr; }

  std::string text_of(std::string_view name, std::uint64_t bytes_max) {
    const ZipRecord* const record = zip_.find(name);
    if (!record) throw Error{fmt::format("it has no {}", name)};
    if (record->bytes > bytes_max) throw Error{fmt::format("its {} has more than {} bytes", name, bytes_max)};
    std::string text(record->bytes, '\0');
    read(name, *record, text.data());
    return text;
  }

  /// Each is read once. All of them together cannot be larger than the file.
  const torch::Storage& storage_at(const std::string& key, std::uint64_t bytes) {
    const auto [known, fresh] = storages_.try_emplace(key);
    if (!fresh) return known->second;
    const std::string name = "data/" + key;
    const ZipRecord* const record = zip_.find(name);
    if (!record || record->bytes != bytes) throw Error{fmt::format("storage {} is missing or of another size", key)};
    if (bytes > storage_bytes_left_) throw Error{"its storages are larger than the file"};
    storage_bytes_left_ -= bytes;
    const torch::Tensor content = torch::empty({static_cast<std::int64_t>(bytes)}, torch::kUInt8);
    read(name, *record, content.data_ptr<std::uint8_t>());
    return known->second = content.storage();
  }

 private:
  void read(std::string_view name, const ZipRecord& record, void* data) {
    const ZipPlace place = zip_.place_of(record);
    file_.read_at(place.begin, data, place.bytes);
    if (crc32(0, data, place.bytes) != record.crc32)
      throw Error{fmt::format("its {} is damaged: its checksum is wrong", name)};
  }

  FileReader file_;
  ZipArchive zip_;
  std::uint64_t storage_bytes_left_;
  std::map<std::string, torch::Storage> storages_;
};

Tensors load_archive(const std::filesystem::path& path) {
  try {
    Archive archive{path};
    if (archive.has("constants.pkl"))
      throw Error{"it is a TorchScript program or LibTorch archive: use torch::jit::load or torch::load"};
    constexpr std::string_view little = "little";  // the other one is "big"
    if (archive.has("byteorder") && archive.text_of("byteorder", little.size()) != little)
      throw Error{"its numbers are big endian"};
    Tensors tensors;
    for (const auto& [name, pickled] : tensors_in_pickle(archive.text_of("data.pkl", pickle_bytes_max))) {
      const auto dtype = std::ranges::find(torch_dtypes, pickled.dtype, &TorchDtype::name);
      torch::Tensor& tensor = tensors[name];
      tensor = torch::empty({0}, scalar_type_of(*dtype))
                   .set_(archive.storage_at(pickled.storage, pickled.storage_bytes), pickled.offset, pickled.sizes,
                         pickled.strides);
      // No copy, as in Python: an expanded tensor may be larger than any memory.
      tensor._set_conj(pickled.conjugated);
      tensor._set_neg(pickled.negated);
    }
    return tensors;
  } catch (const c10::Error& error) {
    throw Error{path.string() + " cannot be read: " + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    throw Error{path.string() + " cannot be read: " + error.what()};
  }
}

}  // namespace

Tensors load_tensors(const std::filesystem::path& path) {
  // A safetensors file begins with the length of its header, which may begin with any byte: all four are looked at.
  std::array<char, 4> first{};
  {
    FileReader file{path};
    file.read_at(0, first.data(), std::min<std::uint64_t>(first.size(), file.bytes()));
  }
  if (first == std::array{'P', 'K', '\x03', '\x04'}) return load_archive(path);
  if (first == std::array{'\x80', '\x02', '\x8a', '\x0a'}) {
    throw Error{path.string() + " is in the format of torch.save before 1.6: load it with Python and save it again"};
  }
  return load_safetensors(path).tensors;
}

void load_weights(const std::filesystem::path& path, torch::nn::Module& module, const std::string& prefix) {
  Tensors stored;
  for (auto& [name, tensor] : load_tensors(path)) {
    if (name.starts_with(prefix)) stored.emplace(name.substr(prefix.size()), tensor);
  }
  constexpr std::string_view ddp_prefix = "module.";
  const auto is_stored = [&](const auto& item) { return stored.contains(item.key()); };
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  // A model may have a child of that name itself: then its own names are there.
  if (std::ranges::all_of(stored, [&](const auto& entry) { return entry.first.starts_with(ddp_prefix); }) &&
      std::ranges::none_of(parameters, is_stored) && std::ranges::none_of(buffers, is_stored)) {
    Tensors plain;
    for (auto& [name, tensor] : stored) plain.emplace(name.substr(ddp_prefix.size()), tensor);
    stored = std::move(plain);
  }

  std::vector<std::pair<torch::Tensor, torch::Tensor>> copies;
  std::string wrong;
  const auto match = [&](const std::string& name, const torch::Tensor& target) {
    const auto found = stored.find(name);
    if (found == stored.end()) {
      wrong += "\n  missing: " + name;
      return;
    }
    if (found->second.sizes() != target.sizes()) {
      wrong += "\n  " + name + " has shape " + c10::str(found->second.sizes()) + " in the file and " +
               c10::str(target.sizes()) + " in the module";
    }
    copies.emplace_back(target, found->second);
    stored.erase(found);
  };
  for (const auto& parameter : parameters) match(parameter.key(), parameter.value());
  for (const auto& buffer : buffers) {
    if (buffer.value().defined()) match(buffer.key(), buffer.value());
  }
  for (const auto& [name, tensor] : stored) wrong += "\n  not in the module: " + name;
  if (!wrong.empty()) throw Error{path.string() + " does not fit the module:" + wrong};
  // A copy converts first and negates then, which the target's dtype may not be able to: so the value's own does.
  for (auto& [target, value] : copies) value = value.resolve_neg();
  for (auto& [target, value] : copies) target.data().copy_(value);
}

}  // namespace torchup
