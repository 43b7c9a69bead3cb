#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/format/safetensors_header.hpp"
#include "worker_runtime/state/file_reader.hpp"
#include "worker_runtime/state/file_writer.hpp"
#include "worker_runtime/state/safetensors_reader.hpp"

namespace torchup {

namespace {

using nlohmann::json;

// The format: 8 bytes, little endian: length of the header; the header, a JSON object of
// name -> {"dtype", "shape", "data_offsets": [begin, end]} and "__metadata__" -> {text: text}; the data without gaps.
// Source: https://github.com/huggingface/safetensors, README, "Format".

constexpr std::array<std::pair<const char*, torch::ScalarType>, 16> dtype_names{{
    {"F64", torch::kFloat64},
    {"F32", torch::kFloat32},
    {"F16", torch::kFloat16},
    {"BF16", torch::kBFloat16},
    {"F8_E4M3", torch::kFloat8_e4m3fn},
    {"F8_E5M2", torch::kFloat8_e5m2},
    {"C64", torch::kComplexFloat},
    {"I64", torch::kInt64},
    {"I32", torch::kInt32},
    {"I16", torch::kInt16},
    {"I8", torch::kInt8},
    {"U64", torch::kUInt64},
    {"U32", torch::kUInt32},
    {"U16", torch::kUInt16},
    {"U8", torch::kUInt8},
    {"BOOL", torch::kBool},
}};

const char* name_of(torch::ScalarType dtype) {
  for (const auto& [name, type] : dtype_names) {
    if (type == dtype) return name;
  }
  return nullptr;
}

std::optional<torch::ScalarType> dtype_of(std::string_view text) {
  for (const auto& [name, type] : dtype_names) {
    if (text == name) return type;
  }
  return std::nullopt;
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
    const char* dtype =
        tensor.defined() && tensor.layout() == torch::kStrided ? name_of(tensor.scalar_type()) : nullptr;
    if (dtype == nullptr) {
      throw Error{path.string() + ": tensor " + name + " is undefined, sparse or of a dtype that safetensors lacks"};
    }
    if (name == "__metadata__" || header.contains(name)) {
      throw Error{path.string() + ": two tensors are named " + name};
    }
    stored.push_back(tensor.detach().to(torch::kCPU).contiguous());
    const std::uint64_t end = offset + stored.back().nbytes();
    header[name] = {{"dtype", dtype}, {"shape", tensor.sizes().vec()}, {"data_offsets", {offset, end}}};
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
    torch::Tensor tensor = torch::empty(entry.shape, *dtype_of(entry.dtype));
    file.read(tensor.mutable_data_ptr(), entry.end - entry.begin);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  return result;
}

}  // namespace torchup
