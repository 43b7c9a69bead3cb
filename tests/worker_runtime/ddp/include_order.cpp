// Must compile: both headers walk over tensors by functions of one name, and this is not the order of torchup.hpp.
// clang-format off
#include <torchup/to_device.hpp>
#include <torchup/distributed_data_parallel.hpp>
// clang-format on

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

namespace stranger {

struct Heads {
  torch::Tensor left;
  std::vector<torch::Tensor> others;
};
template <class Visit>
void for_each_tensor(Heads& heads, Visit&& visit) {
  visit(heads.left);
  visit(heads.others);
}

using Output = std::tuple<torch::Tensor, int, std::map<std::string, double>, std::optional<float>, std::vector<Heads>>;

struct Net : torch::nn::Module {
  Output forward(torch::Tensor input) { return {input, 1, {}, {}, {}}; }
};

Output step(torchup::DistributedDataParallel<std::shared_ptr<Net>>& ddp) { return ddp(torch::ones({1})); }

}  // namespace stranger
