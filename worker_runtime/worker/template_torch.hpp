#pragma once

namespace torchup {

/// Computes forwards and backwards. For a child of a template: what libraries have left in it may stop that for ever.
void try_to_compute();

/// Gives a forked process random numbers of its own, as an executed one has them. Where the program has seeded
/// LibTorch's default generator itself, all workers go on from there, executed or forked.
void draw_own_random_numbers();

}  // namespace torchup
