#pragma once

#include <torch/torch.h>

#include <filesystem>

namespace fashion_mnist {

/// Fashion-MNIST: photographs of clothing, 28 x 28 grey pixels, ten classes.
///
/// Whole in memory, as bytes (47 MB for training); a batch is normalised when it is asked for. Handing `get_batch` the
/// same indices gives the same bits as the same steps in Python.
class Dataset : public torch::data::datasets::BatchDataset<Dataset, torch::data::Example<>, torch::ArrayRef<size_t>> {
 public:
  enum class Part { train, test };  ///< 60,000 images; 10,000 images; or fewer of them

  /// Reads the gzip IDX files of `part` in `folder` and keeps the first `samples` images, all when 0.
  ///
  /// Errors: std::runtime_error that names the file when it is missing, cut short, not of IDX's format, of another
  /// shape than 28 x 28, or holds a label above 9.
  Dataset(const std::filesystem::path& folder, Part part, size_t samples = 0);

  /// data: float, [indices, 1, 28, 28], mean 0 and deviation 1 over the training part; target: int64, [indices].
  torch::data::Example<> get_batch(torch::ArrayRef<size_t> indices) override;
  [[nodiscard]] std::optional<size_t> size() const override { return static_cast<size_t>(labels_.size(0)); }

 private:
  torch::Tensor images_;  // uint8, [size, 1, 28, 28]
  torch::Tensor labels_;  // int64, [size]
};

}  // namespace fashion_mnist
