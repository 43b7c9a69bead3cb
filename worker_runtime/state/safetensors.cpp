#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/format/safetensors_header.hpp"
#include "worker_runtime/state/file_reader.hpp"
#include "worker_runtime/state/file_writer.hpp"
#include "worker_runtime/state/safetensors_reader.hpp"
#include "worker_runtime/state/scalar_types.hpp"

namespace torchup {

namespace {

using nlohmann::json;

// The format: 8 bytes, little endian: length of the header; the header, a JSON object of
// name -> {"dtype", "shape", "data_offsets": [begin, end]} and "__metadata__" -> {text: text}; the data without gaps.
// Source: https://github.com/huggingface/safetensors, README, "Format".

/// Nothing for what has no name in the format.
std::optional<std::string_view> name_of(torch::ScalarType type) {
  const auto found = std::ranges::find(torch_dtypes, type, scalar_type_of);
  return found == torch_dtypes.end() ? std::nullopt : std::optional{found->safetensors};
}

}  // namespace

WrittenFile save_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                             const std::map<std::string, std::string>& metadata) {
  std::vector<torch::Tensor> stored;
  stored.reserve(tensors.size());
  if (tensors.size() > safetensors_tensors_max || 2 * metadata.size() >= safetensors_values_max)
    throw Error{path.string() + ": so many tensors or so much metadata would not be read again"};
  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const auto dtype =
        tensor.defined() && tensor.layout() == torch::kStrided ? name_of(tensor.scalar_type()) : std::nullopt;
    if (!dtype) {
      throw Error{path.string() + ": tensor " + name + " is undefined, sparse or of a dtype that safetensors lacks"};
    }
    if (name == "__metadata__" || header.contains(name)) {
      throw Error{path.string() + ": two tensors are named " + name};
    }
    stored.push_back(tensor.detach().resolve_conj().resolve_neg().to(torch::kCPU).contiguous());
    const std::uint64_t end = offset + stored.back().nbytes();
    header[name] = {{"dtype", *dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  const auto length = static_cast<std::uint64_t>(text.size());
  if (length > safetensors_header_bytes_max)
    throw Error{path.string() + ": the names alone exceed what safetensors allows"};

  FileWriter file{path};
  file.write(&length, sizeof length);
  file.write(text);
  for (const torch::Tensor& tensor : stored) file.write(tensor.const_data_ptr(), tensor.nbytes());
  return file.commit();
}

SafetensorsFile load_safetensors(const std::filesystem::path& path) {
  FileReader file{path};
  return read_safetensors(file);
}

SafetensorsFile read_safetensors(FileReader& file) {
  const auto wrong = [&](const std::string& what) {
    return Error{fmt::format("{} is no safetensors file: {}", file.path().string(), what)};
  };
  std::uint64_t length = 0;
  if (file.bytes() < sizeof length) throw wrong("it is shorter than 8 bytes");
  file.read(&length, sizeof length);
  if (length > safetensors_header_bytes_max || length > file.bytes() - sizeof length)
    throw wrong(fmt::format("its header would be {} bytes long", length));
  std::string text(length, '\0');
  file.read(text.data(), text.size());
  SafetensorsHeader header;
  try {
    header = parse_safetensors_header(text, file.bytes() - sizeof length - length);
  } catch (const Error& error) {
    throw wrong(error.what());
  }
  SafetensorsFile result{.tensors = {}, .metadata = std::move(header.metadata)};
  for (const SafetensorsEntry& entry : header.tensors) {  // in the order of the data: the reader takes it in one go
    torch::Tensor tensor = torch::empty(
        entry.shape, scalar_type_of(*std::ranges::find(torch_dtypes, entry.dtype, &TorchDtype::safetensors)));
    file.read(tensor.mutable_data_ptr(), entry.end - entry.begin);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

}  // namespace torchup
