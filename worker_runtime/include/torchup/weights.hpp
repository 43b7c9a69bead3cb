#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <filesystem>
#include <map>
#include <string>

namespace torchup {

/// The tensors of a file that Python saved, by name, on the CPU: a safetensors file, or what `torch.save` makes of a
/// state_dict (which LibTorch's own torch::load and pickle_load do not read). Dictionaries in dictionaries give dotted
/// names: {"model": {"fc.weight": …}} has model.fc.weight. Values that are no tensors are passed over. As in Python a
/// tensor that was saved as a conjugated or negated view is one here, too: resolve_conj() and resolve_neg() before its
/// memory is looked at.
///
/// The pickle in a `.pth` is read by a restricted reader: dictionaries, lists, numbers, texts and tensors, nothing that
/// would run code. Throws Error, which names the file, for anything else and for a damaged file.
std::map<std::string, torch::Tensor> load_tensors(const std::filesystem::path& path);

/// Copies the weights of such a file into a module's parameters and buffers.
///
/// Every name of the module must be there with its shape, and no other; numbers are converted to the module's dtype.
/// Only names that begin with `prefix` are looked at, without it ("model." for the example above). A "module." before
/// every name, which Python's DDP puts there, is dropped, unless the module has such names itself. Throws Error that
/// names what does not fit; the module is untouched then.
void load_weights(const std::filesystem::path& path, torch::nn::Module& module, const std::string& prefix = "");

}  // namespace torchup
