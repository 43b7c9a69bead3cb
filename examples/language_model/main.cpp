// Trains a small transformer to continue a text, character by character, data parallel over all workers.
//
//   torchup --nproc-per-node=2 language_model                Debian's licence texts, CPU, about a minute
//   torchup --nproc-per-node=auto language_model --amp       one worker per GPU, mixed precision
//
// Around the model: FusedAdamW, a warm-up followed by a cosine, clipping; --zero shares the optimizer's state out.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <torchup/torchup.hpp>

#include "text.hpp"
#include "transformer.hpp"

namespace {

using namespace language_model;

struct Options {
  std::filesystem::path text = default_text;
  std::int64_t steps = 150;
  std::int64_t batch_size = 32;  ///< windows per step and worker
  double lr = 3e-3;
  double clip = 1.0;
  bool amp = false;
  bool zero = false;
  std::uint64_t seed = 1;
  std::int64_t sample = 200;  ///< characters that the trained model writes in the end
};

/// The options of the command line, or the exit status where the program ends at once. Only who `talks` prints --help;
/// complaints are everybody's, for who ends first takes the others along.
std::optional<Options> parse_options(std::span<char*> arguments, bool talks, int& exit_status) {
  Options options;
  CLI::App app{"Trains a small transformer to continue a text, data parallel over all workers.", "language_model"};
  app.option_defaults()->always_capture_default();
  app.add_option("--text", options.text, "a file, or a folder whose files are read one after another");
  app.add_option("--steps", options.steps, "optimizer steps")->check(CLI::PositiveNumber);
  app.add_option("--batch-size", options.batch_size, "windows of text per step and worker")->check(CLI::PositiveNumber);
  app.add_option("--lr", options.lr, "highest learning rate")->check(CLI::NonNegativeNumber);
  app.add_option("--clip", options.clip, "largest norm of the gradients")->check(CLI::PositiveNumber);
  app.add_flag("--amp", options.amp, "forward in bfloat16 (CPU) or float16 (CUDA)");
  app.add_flag("--zero", options.zero, "every worker keeps its share of the optimizer's state only (ZeRO-1)");
  app.add_option("--seed", options.seed, "of weights and order of windows");
  app.add_option("--sample", options.sample, "characters that the trained model writes")->check(CLI::NonNegativeNumber);
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    return options;
  } catch (const CLI::ParseError& error) {
    const bool help = dynamic_cast<const CLI::CallForHelp*>(&error) != nullptr;
    if (talks && help) std::cout << app.help();
    if (!help) std::cerr << "language_model: " << error.what() << " (--help lists the options)\n";
    exit_status = help ? 0 : 2;
  }
  return std::nullopt;
}

/// Windows of `context` characters and the characters that follow each of them, every `context` / 2 characters.
class Windows : public torch::data::datasets::BatchDataset<Windows, torch::data::Example<>, torch::ArrayRef<size_t>> {
 public:
  Windows(torch::Tensor codes, std::int64_t context) : codes_{std::move(codes)}, context_{context} {}

  torch::data::Example<> get_batch(torch::ArrayRef<size_t> indices) override {
    std::vector<torch::Tensor> inputs, targets;
    for (const size_t index : indices) {
      const auto at = static_cast<std::int64_t>(index) * stride();
      inputs.push_back(codes_.narrow(0, at, context_));
      targets.push_back(codes_.narrow(0, at + 1, context_));
    }
    return {torch::stack(inputs), torch::stack(targets)};
  }
  std::optional<size_t> size() const override {
    return static_cast<size_t>((codes_.numel() - context_ - 1) / stride() + 1);
  }

 private:
  std::int64_t stride() const { return context_ / 2; }

  torch::Tensor codes_;
  std::int64_t context_;
};

torch::Tensor loss_of(const torch::Tensor& output, const torch::Tensor& target) {
  return torch::nn::functional::cross_entropy(output.flatten(0, 1).to(torch::kFloat), target.flatten());
}

/// Bits per character on text that the model has not seen; each rank takes every size()-th window.
double evaluate(Transformer& model, Windows& windows, const torchup::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  torch::Tensor sums = torch::zeros({2}, torch::dtype(torch::kDouble).device(group.device()));
  for (auto window = static_cast<size_t>(group.rank()); window < *windows.size();
       window += static_cast<size_t>(group.size())) {
    const auto batch = windows.get_batch(window);
    const auto loss = loss_of(model->forward(batch.data.to(group.device())), batch.target.to(group.device()));
    sums += torch::stack({loss.to(torch::kDouble), torch::ones({}, sums.options())});
  }
  torchup::all_reduce(sums, group);
  return (sums[0] / sums[1]).item<double>() / std::log(2.0);
}

std::string write(Transformer& model, const Text& text, const Shape& shape, std::int64_t length, torch::Device device) {
  const torch::NoGradGuard no_grad;
  torch::Tensor codes = torch::zeros({1, 1}, torch::dtype(torch::kInt64).device(device));
  std::string written;
  for (std::int64_t i = 0; i < length; ++i) {
    const auto seen = codes.narrow(1, std::max<std::int64_t>(codes.size(1) - shape.context, 0),
                                   std::min(codes.size(1), shape.context));
    const auto next = torch::softmax(model->forward(seen).select(1, -1) / 0.7, -1).multinomial(1);
    codes = torch::cat({codes, next}, 1);
    written.push_back(text.alphabet[static_cast<std::size_t>(next.item<std::int64_t>())]);
  }
  return written;
}

int train(torchup::Worker& worker, std::span<char*> arguments) {
  int exit_status = 0;
  const auto parsed = parse_options(arguments, worker.rank() == 0, exit_status);
  if (!parsed) return exit_status;
  const Options& options = *parsed;
  auto group = torchup::init_process_group();
  const bool talks = group.rank() == 0;
  torchup::seed_everything({.seed = options.seed}, group);

  const Text text = read_text(options.text);
  const Shape shape{.alphabet = static_cast<std::int64_t>(text.alphabet.size())};
  const torch::Tensor codes = torch::tensor(text.codes);
  const std::int64_t held_back = codes.numel() / 10;  // the last tenth
  if (held_back <= shape.context)
    throw torchup::Error{options.text.string() + ": " + std::to_string(codes.numel()) +
                         " characters are too few: the tenth that is held back must be longer than the " +
                         std::to_string(shape.context) + " that the model looks back"};
  Windows windows{codes.narrow(0, 0, codes.numel() - held_back), shape.context};
  Windows unseen{codes.narrow(0, codes.numel() - held_back, held_back), shape.context};

  Transformer model{shape};
  model->to(group.device());
  if (talks) std::cout << torchup::banner(group) << '\n' << torchup::summary(*model) << std::flush;
  torchup::DistributedDataParallel ddp{model, group, {.gradient_as_bucket_view = true}};

  std::unique_ptr<torch::optim::Optimizer> optimizer;
  const auto adamw = torchup::FusedAdamWOptions{options.lr};
  if (options.zero)
    optimizer = std::make_unique<torchup::ZeroRedundancyOptimizer<torchup::FusedAdamW>>(ddp.parameters(), group, adamw);
  else
    optimizer = std::make_unique<torchup::FusedAdamW>(ddp.parameters(), adamw);
  const std::int64_t warm_up = std::max<std::int64_t>(options.steps / 10, 1);
  torchup::LrScheduler scheduler{
      *optimizer,
      torchup::SequentialLR{{torchup::LinearLR{.start_factor = 0.1, .total_iters = warm_up},
                             torchup::CosineAnnealingLR{.t_max = std::max<std::int64_t>(options.steps - warm_up, 1)}},
                            {warm_up}}};
  torchup::GradScaler::Options scaling;
  scaling.enabled = options.amp && group.device().is_cuda();  // bfloat16 has float32's range
  torchup::GradScaler scaler{scaling};

  torchup::DistributedSampler sampler{*windows.size(), group, {.shuffle = true, .seed = options.seed}};
  auto loader = torch::data::make_data_loader(windows, sampler,
                                              torch::data::DataLoaderOptions{static_cast<size_t>(options.batch_size)});
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < options.steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : torchup::to_device(*loader, group.device(), sampler)) {
      optimizer->zero_grad();
      torch::Tensor loss;
      {
        const torchup::Autocast guard{group.device().type(), {.enabled = options.amp}};
        loss = loss_of(ddp(batch.data), batch.target);
      }
      scaler.scale(loss).backward();
      scaler.unscale_(*optimizer);
      torchup::clip_grad_norm_(ddp.parameters(), options.clip);
      scaler.step(*optimizer);
      scaler.update();
      scheduler.step();
      ++step;
      if (talks && (step % 25 == 0 || step == options.steps))
        std::printf("step %lld: %.3f bits per character\n", static_cast<long long>(step),
                    loss.item<double>() / std::log(2.0));
      std::fflush(stdout);
      if (worker.end_step(step).stop) throw torchup::Error{"the job is to stop, and this example saves nothing"};
      if (step == options.steps) break;
    }
  }
  const double bits = evaluate(model, unseen, group);
  if (talks) {
    std::printf("unseen text: %.3f bits per character (%.2f for a guess)\n", bits,
                std::log2(static_cast<double>(shape.alphabet)));
    if (options.sample > 0) std::printf("%s\n", write(model, text, shape, options.sample, group.device()).c_str());
    std::fflush(stdout);
  }
  group.shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return torchup::worker_main(argc, argv, train); }
