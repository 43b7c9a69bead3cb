#include "options.hpp"

#include <CLI/CLI.hpp>
#include <iostream>

namespace fashion_mnist {

std::optional<Options> parse_options(std::span<char*> arguments, bool talks, int& exit_status) {
  Options options;
  CLI::App app{"Trains a small residual network on Fashion-MNIST, data parallel over all workers.", "fashion_mnist"};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "folder with the gzip IDX files");
  app.add_option("--epochs", options.epochs, "passes over the training images")->check(CLI::PositiveNumber);
  app.add_option("--samples", options.samples, "training images used; 0: all 60,000");
  app.add_option("--batch-size", options.batch_size, "images per step over all workers")->check(CLI::PositiveNumber);
  app.add_option("--lr", options.lr, "learning rate")->check(CLI::NonNegativeNumber);
  app.add_option("--momentum", options.momentum, "of SGD")->check(CLI::NonNegativeNumber);
  app.add_option("--scheduler", options.scheduler, "linear: the learning rate falls to 0 at the end")
      ->check(CLI::IsMember({"linear", "cosine", "onecycle", "none"}));
  app.add_option("--clip", options.clip, "largest norm of the gradients; 0: as they are")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--amp", options.amp, "forward in bfloat16 (CPU) or float16 (CUDA)");
  app.add_flag("--sync-bn", options.sync_bn, "BatchNorm over the batch of all workers");
  app.add_flag("--zero", options.zero, "every worker keeps its share of the optimizer's state only (ZeRO-1)");
  app.add_option("--seed", options.seed, "of weights and order of data");
  app.add_option("--steps", options.steps, "end after so many steps; 0: after the epochs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--backend", options.backend, "nccl where every worker has a GPU, else gloo")
      ->check(CLI::IsMember({"auto", "gloo", "nccl"}));
  app.add_option("--device", options.device, "auto: the worker's own GPU where it has one; cpu; cuda:N");
  app.add_option("--weights", options.weights,
                 "begin with these: safetensors, or Python's torch.save(model.state_dict())");
  app.add_option("--checkpoint", options.checkpoint,
                 "save here after each epoch, and go on from the newest one that is there");
  app.add_flag("--resume", options.resume, "fail unless there is one in --checkpoint to go on from")
      ->needs("--checkpoint");
  app.add_flag("--elastic", options.elastic, "a worker that survives a fault keeps its state and goes on")
      ->excludes("--zero");
  app.add_option("--save-weights", options.save_weights, "rank 0 writes the trained weights here (safetensors)");
  app.add_option("--history", options.history, "rank 0 writes each step's loss here, one JSON object a line");
  try {
    app.parse(static_cast<int>(arguments.size()), arguments.data());
    return options;
  } catch (const CLI::CallForHelp&) {
    if (talks) std::cout << app.help();
    exit_status = 0;
  } catch (const CLI::ParseError& error) {
    std::cerr << "fashion_mnist: " << error.what() << " (--help lists the options)\n";
    exit_status = 2;
  }
  return std::nullopt;
}

}  // namespace fashion_mnist
