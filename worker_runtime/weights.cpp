#include "torchup/weights.hpp"

#include <caffe2/serialize/inline_container.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/pickle_reader.hpp"

namespace torchup {

namespace {

using Tensors = std::map<std::string, torch::Tensor>;

/// A zip archive of torch.save: data.pkl, byteorder, and the storages as data/0, data/1, …
Tensors load_archive(const std::filesystem::path& path) {
  const auto text_of = [](caffe2::serialize::PyTorchStreamReader& archive, const char* name) {
    const auto [data, size] = archive.getRecord(name);
    return std::string{static_cast<const char*>(data.get()), size};
  };
  try {
    caffe2::serialize::PyTorchStreamReader archive{path.string()};
    if (archive.hasRecord("constants.pkl"))
      throw Error{"it is a TorchScript program or LibTorch archive: use torch::jit::load or torch::load"};
    if (archive.hasRecord("byteorder") && text_of(archive, "byteorder") != "little")
      throw Error{"its numbers are big endian"};
    return tensors_in_pickle(text_of(archive, "data.pkl"), [&](const std::string& key, std::uint64_t bytes) {
      const std::string record = "data/" + key;
      if (!archive.hasRecord(record) || archive.getRecordSize(record) != bytes)
        throw Error{"storage " + key + " is missing or of another size"};
      auto [data, size] = archive.getRecord(record);
      return torch::Storage{torch::Storage::use_byte_size_t{}, size, std::move(data), nullptr, /*resizable=*/false};
    });
  } catch (const c10::Error& error) {
    throw Error{path.string() + " cannot be read: " + error.what_without_backtrace()};
  } catch (const std::exception& error) {
    throw Error{path.string() + " cannot be read: " + error.what()};
  }
}

}  // namespace

Tensors load_tensors(const std::filesystem::path& path) {
  std::array<char, 2> first{};
  std::ifstream{path, std::ios::binary}.read(first.data(), first.size());
  if (first == std::array{'P', 'K'}) return load_archive(path);
  if (first[0] == '\x80') {
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
  if (std::ranges::all_of(stored, [&](const auto& entry) { return entry.first.starts_with(ddp_prefix); })) {
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
  for (const auto& parameter : module.named_parameters()) match(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) {
    if (buffer.value().defined()) match(buffer.key(), buffer.value());
  }
  for (const auto& [name, tensor] : stored) wrong += "\n  not in the module: " + name;
  if (!wrong.empty()) throw Error{path.string() + " does not fit the module:" + wrong};
  for (auto& [target, value] : copies) target.data().copy_(value);
}

}  // namespace torchup
