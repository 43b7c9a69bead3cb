#include <torch/torch.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <torchup/error.hpp>
#include <torchup/safetensors.hpp>

#include "tests/support/temporary_folder.hpp"
#include "worker_runtime/format/safetensors_header.hpp"
#include "worker_runtime/state/crc32.hpp"
#include "worker_runtime/state/scalar_types.hpp"

using namespace torchup;

namespace {

void put(const std::filesystem::path& path, std::string_view bytes) { std::ofstream{path, std::ios::binary} << bytes; }

std::string with_header(std::string header, std::string_view data) {
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  return file + header + std::string{data};
}

}  // namespace

TEST_CASE("crc32 is zlib's", "[worker_runtime][crc32]") {
  REQUIRE(crc32(0, "123456789", 9) == 0xCBF43926);  // the check value of CRC-32/ISO-HDLC
  const std::string text(1000, 'x');
  REQUIRE(crc32(crc32(0, text.data(), 333), text.data() + 333, 667) == crc32(0, text.data(), 1000));
  REQUIRE(crc32(0, text.data(), 1000) == 0x3B41C9E6);  // zlib.crc32(b"x" * 1000)
}

TEST_CASE("every dtype that files may have is LibTorch's of that name and size", "[worker_runtime][safetensors]") {
  const test::TemporaryFolder folder;
  NamedTensors tensors;
  for (const TorchDtype& dtype : torch_dtypes) {
    const torch::ScalarType type = scalar_type_of(dtype);
    REQUIRE(c10::getDtypeNames(type).first == dtype.name);
    REQUIRE(c10::elementSize(type) == dtype.bytes);
    REQUIRE(safetensors_element_bytes(dtype.safetensors) == dtype.bytes);
    tensors.emplace_back(dtype.safetensors, torch::zeros({2}, type));
  }
  save_safetensors(folder.path / "all", tensors);
  const SafetensorsFile file = load_safetensors(folder.path / "all");
  for (const auto& [name, tensor] : tensors) REQUIRE(file.tensors.at(name).scalar_type() == tensor.scalar_type());
}

TEST_CASE("tensors come back from safetensors bit for bit", "[worker_runtime][safetensors]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path / "model.safetensors";
  NamedTensors tensors;
  for (const auto dtype : {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16}) {
    tensors.emplace_back(std::string{"layer."} + c10::toString(dtype), torch::randn({3, 5}).to(dtype));
  }
  for (const auto dtype : {torch::kInt64, torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool}) {
    tensors.emplace_back(c10::toString(dtype), torch::randint(0, 2, {7}).to(dtype));
  }
  tensors.emplace_back("scalar", torch::tensor(4.25));
  tensors.emplace_back("empty", torch::empty({0, 3}));
  tensors.emplace_back("transposed", torch::arange(6).reshape({2, 3}).t());
  const WrittenFile written = save_safetensors(path, tensors, {{"format", "pt"}, {"step", "7 \"quoted\""}});
  REQUIRE(written.bytes == std::filesystem::file_size(path));
  REQUIRE(std::distance(std::filesystem::directory_iterator{folder.path}, {}) == 1);

  const SafetensorsFile file = load_safetensors(path);
  REQUIRE(file.metadata == std::map<std::string, std::string>{{"format", "pt"}, {"step", "7 \"quoted\""}});
  REQUIRE(file.tensors.size() == tensors.size());
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    REQUIRE(file.tensors.at(name).scalar_type() == tensor.scalar_type());
    REQUIRE(torch::equal(file.tensors.at(name), tensor));
  }
}

TEST_CASE("what cannot be stored is refused and leaves no file", "[worker_runtime][safetensors]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path / "x.safetensors";
  REQUIRE_THROWS_WITH(save_safetensors(path, {{"a", torch::ones(1)}, {"a", torch::ones(1)}}),
                      Catch::Contains("two tensors are named a"));
  REQUIRE_THROWS_WITH(save_safetensors(path, {{"eye", torch::eye(2).to_sparse()}}),
                      Catch::Contains("tensor eye is undefined, sparse or"));
  REQUIRE_THROWS_WITH(save_safetensors(folder.path / "none" / "x", {}), Catch::Contains("No such file"));
  REQUIRE(std::filesystem::is_empty(folder.path));
}

TEST_CASE("a file that is not whole safetensors is refused, and says why", "[worker_runtime][safetensors]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path / "bad.safetensors";
  const std::string good_entry = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  const auto [bytes, why] = GENERATE_COPY(table<std::string, std::string>({
      {"short", "shorter than 8"},
      {std::string(8, '\xff'), "header would be"},
      {with_header("not json", ""), "no JSON object"},
      {with_header("[1]", ""), "no JSON object"},
      {with_header(R"({"a":{"dtype":"F32"}})", ""), "does not describe tensors"},
      {with_header(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", "12345678"), "dtype F31"},
      {with_header(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", "12345678"), "tensor a"},
      {with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", "12345678"), "tensor a"},
      {with_header(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "12345678"), "tensor a"},
      {with_header(R"({"a":{"dtype":"F32","shape":[4611686018427387904,2],"data_offsets":[0,8]}})", "12345678"),
       "tensor a"},
      {with_header(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})", std::string(16, 'x')), "tensor a"},
      {with_header(good_entry, "1234567"), "tensor a"},
      {with_header(good_entry, "123456789"), "belong to no tensor"},
  }));
  put(path, bytes);
  CAPTURE(why);
  REQUIRE_THROWS_WITH(load_safetensors(path), Catch::Contains(why) && Catch::Contains("bad.safetensors"));
}

TEST_CASE("a view that is conjugated or negated only when it is read is stored as it reads",
          "[worker_runtime][safetensors]") {
  const test::TemporaryFolder folder;
  const auto path = folder.path / "x.safetensors";
  const torch::Tensor z = torch::complex(torch::ones({2}), torch::full({2}, 3.0));
  save_safetensors(path, {{"conjugate", torch::conj(z)}, {"negative", torch::imag(torch::conj(z))}});
  const auto loaded = load_safetensors(path).tensors;
  REQUIRE(torch::equal(torch::view_as_real(loaded.at("conjugate")).select(1, 1), torch::full({2}, -3.0)));
  REQUIRE(torch::equal(loaded.at("negative"), torch::full({2}, -3.0)));
}
