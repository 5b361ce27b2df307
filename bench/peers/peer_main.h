// The main function of a peer's program:
//
//   <program> [--quick] [--gpu] <variant> [<group>…]    figures as lines of JSON; without a group only tries the variant
//
// With --gpu it need not run over the simulated runtime. The peer defines the meaning of a variant, an option string for one.
// An impossible request is one line on standard error and exit status 2.
#pragma once

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "bench/peers/figures.h"

namespace cachalot::bench {

// The groups of figures that the arguments ask for.
template <Allocates Peer>
void measure_all(Peer& peer, const Effort& effort, const std::vector<std::string>& groups) {
  start_a_thread();
  for (const std::string& group : groups) {
    if (!measure(peer, effort, group)) throw std::invalid_argument("there is no group '" + group + "'");
  }
}

inline void require_simulator() {
  if (!Simulator().is_there()) {
    throw std::runtime_error("the simulated CUDA runtime is not loaded; bench/peers.py does that");
  }
}

// `run(variant, effort, groups)` makes the peer and measures it.
template <typename Run>
int peer_main(int argc, char** argv, Run&& run) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const bool quick = std::erase(arguments, "--quick") > 0;
  const bool gpu = std::erase(arguments, "--gpu") > 0;
  try {
    if (arguments.empty()) throw std::invalid_argument("usage: [--quick] [--gpu] <variant> [<group>...]");
    if (!gpu) require_simulator();
    run(arguments[0], quick ? kQuick : kFull, std::vector<std::string>(arguments.begin() + 1, arguments.end()));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 2;
  }
  return 0;
}

}  // namespace cachalot::bench
