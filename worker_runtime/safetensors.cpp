#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "worker_runtime/file_reader.hpp"
#include "worker_runtime/file_writer.hpp"
#include "worker_runtime/safetensors_reader.hpp"

namespace torchup {

namespace {

using nlohmann::json;

// The format: 8 bytes, little endian: length of the header; the header, a JSON object of
// name -> {"dtype", "shape", "data_offsets": [begin, end]} and "__metadata__" -> {text: text}; the data without gaps.
// Source: https://github.com/huggingface/safetensors, README, "Format".
constexpr std::size_t header_bytes_max = 100'000'000;  // the reference's own limit

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
  if (length > header_bytes_max) throw Error{path.string() + ": the names alone exceed what safetensors allows"};

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
    return Error{file.path().string() + " is no safetensors file: " + what};
  };
  std::uint64_t length = 0;
  if (file.bytes() < sizeof length) throw wrong("it is shorter than 8 bytes");
  file.read(&length, sizeof length);
  if (length > header_bytes_max || length > file.bytes() - sizeof length) {
    throw wrong("its header would be " + std::to_string(length) + " bytes long");
  }
  std::string text(length, '\0');
  file.read(text.data(), text.size());
  const json header = json::parse(text, nullptr, false);
  if (!header.is_object()) throw wrong("its header is no JSON object");
  const std::uint64_t data_bytes = file.bytes() - sizeof length - length;

  struct Entry {
    std::uint64_t begin, end;
    std::string name;
    torch::ScalarType dtype;
    std::vector<std::int64_t> shape;
  };
  SafetensorsFile result;
  std::vector<Entry> entries;
  try {
    for (const auto& [name, value] : header.items()) {
      if (name == "__metadata__") {
        result.metadata = value.get<std::map<std::string, std::string>>();
        continue;
      }
      const auto dtype = dtype_of(value.at("dtype").get<std::string>());
      if (!dtype) throw wrong("tensor " + name + " has dtype " + value.at("dtype").get<std::string>());
      entries.push_back({value.at("data_offsets").at(0).get<std::uint64_t>(),
                         value.at("data_offsets").at(1).get<std::uint64_t>(), name, *dtype,
                         value.at("shape").get<std::vector<std::int64_t>>()});
    }
  } catch (const json::exception& error) {
    throw wrong(std::string{"its header does not describe tensors: "} + error.what());
  }

  // In the order of the data, which the reader takes in one go; without gaps and overlaps, as the format demands.
  std::ranges::sort(entries, {}, [](const Entry& entry) { return std::pair{entry.begin, entry.end}; });
  std::uint64_t offset = 0;
  for (const Entry& entry : entries) {
    std::uint64_t bytes = c10::elementSize(entry.dtype);
    for (const std::int64_t side : entry.shape) {
      const auto count = static_cast<std::uint64_t>(side);
      if (side < 0 || (side > 0 && bytes > data_bytes / count)) {
        throw wrong("the shape of tensor " + entry.name + " does not fit into the file");
      }
      bytes *= count;
    }
    if (entry.begin != offset || entry.end < entry.begin || entry.end - entry.begin != bytes ||
        entry.end > data_bytes) {
      throw wrong("the offsets of tensor " + entry.name + " do not fit its shape, its neighbours or the file");
    }
    offset = entry.end;
    torch::Tensor tensor = torch::empty(entry.shape, entry.dtype);
    file.read(tensor.mutable_data_ptr(), bytes);
    result.tensors.emplace(entry.name, std::move(tensor));
  }
  if (offset != data_bytes) throw wrong(std::to_string(data_bytes - offset) + " bytes belong to no tensor");
  return result;
}

}  // namespace torchup
