#include "dataset.hpp"

#include <zlib.h>

#include <array>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace fashion_mnist {
namespace {

constexpr std::uint32_t image_magic = 0x0803;  // IDX: unsigned bytes, three dimensions
constexpr std::uint32_t label_magic = 0x0801;  // IDX: unsigned bytes, one dimension
constexpr std::uint32_t image_side = 28;
constexpr std::int64_t classes = 10;

// Mean and standard deviation of the training pixels, on the scale 0 .. 1.
constexpr double pixel_mean = 0.2860;
constexpr double pixel_deviation = 0.3530;

/// A gzip file read from its beginning, with the file's name in every complaint.
class GzipFile {
 public:
  explicit GzipFile(std::filesystem::path path) : path_{std::move(path)}, file_{gzopen(path_.c_str(), "rb"), &gzclose} {
    if (!file_)
      fail("cannot be opened; install the Debian package dataset-fashion-mnist or name its folder with --data");
  }

  std::uint32_t number() {
    std::array<unsigned char, 4> bytes{};
    read(bytes.data(), bytes.size());
    return std::uint32_t{bytes[0]} << 24 | std::uint32_t{bytes[1]} << 16 | std::uint32_t{bytes[2]} << 8 | bytes[3];
  }

  void read(void* target, size_t size) {
    const int got = gzread(file_.get(), target, static_cast<unsigned>(size));
    if (got < 0 || static_cast<size_t>(got) != size) fail("ends early or is not a gzip file");
  }

  void expect(std::uint32_t wanted, const char* what) {
    if (const std::uint32_t got = number(); got != wanted)
      fail(std::string{what} + " is " + std::to_string(got) + " instead of " + std::to_string(wanted));
  }

  [[noreturn]] void fail(const std::string& why) const { throw std::runtime_error{path_.string() + ": " + why}; }

 private:
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

}  // namespace

Dataset::Dataset(const std::filesystem::path& folder, Part part, size_t samples) {
  const std::string prefix = part == Part::train ? "train" : "t10k";
  const size_t most = part == Part::train ? 60'000 : 10'000;

  GzipFile images{folder / (prefix + "-images-idx3-ubyte.gz")};
  images.expect(image_magic, "the magic number");
  const size_t whole = images.number();
  if (whole == 0 || whole > most)
    images.fail("the number of images is " + std::to_string(whole) + ", not between 1 and " + std::to_string(most));
  const size_t kept = samples == 0 ? whole : std::min(samples, whole);
  images.expect(image_side, "the height");
  images.expect(image_side, "the width");
  images_ = torch::empty({static_cast<std::int64_t>(kept), 1, image_side, image_side}, torch::kUInt8);
  images.read(images_.data_ptr(), kept * image_side * image_side);

  GzipFile labels{folder / (prefix + "-labels-idx1-ubyte.gz")};
  labels.expect(label_magic, "the magic number");
  labels.expect(static_cast<std::uint32_t>(whole), "the number of labels");
  const torch::Tensor bytes = torch::empty({static_cast<std::int64_t>(kept)}, torch::kUInt8);
  labels.read(bytes.data_ptr(), kept);
  labels_ = bytes.to(torch::kInt64);
  if (labels_.max().item<std::int64_t>() >= classes) labels.fail("holds a label above 9");
}

torch::data::Example<> Dataset::get_batch(torch::ArrayRef<size_t> indices) {
  const std::vector<std::int64_t> rows(indices.begin(), indices.end());
  const torch::Tensor chosen = torch::tensor(rows);
  const torch::Tensor pixels = images_.index_select(0, chosen).to(torch::kFloat32);
  return {pixels.div_(255).sub_(pixel_mean).div_(pixel_deviation), labels_.index_select(0, chosen)};
}

}  // namespace fashion_mnist
