// A ServingFit tells whether a server of a language model fits on GPUs, and what its cache holds: one struct for figures by
// arithmetic, and for those of a run of the engine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/serving/served_model.h"
#include "tools/simulation/card_table.h"

namespace cachalot::tools {

enum class Engine : std::uint8_t { vllm, sglang, transformers };

std::string_view name_of(Engine engine);
// Throws InvalidArgument.
Engine engine_named(std::string_view name);

// Returns the bytes of weights on each of `gpus` GPUs.
std::uint64_t weight_bytes(const ServedModel& model, Engine engine, std::int64_t gpus);

// The cache of one GPU. vLLM cuts it into blocks that groups of layers share, SGLang into slots of tokens, and Transformers into sectors,
// each of which has pages of one kind of layers; states it allocates for each request.
class CachePool {
 public:
  // `element_bytes`: of keys and values. `in_flight`: the tokens of batches that vLLM has begun.
  CachePool(const ServedModel& model, Engine engine, std::int64_t gpus, std::uint64_t element_bytes,
            std::int64_t in_flight);

  // Returns the bytes of a token of a long request where all layers keep it, and those of a request's states.
  std::uint64_t token_bytes() const { return full_bytes_ + window_bytes_; }
  std::uint64_t state_bytes() const { return state_bytes_; }

  // The cache of Transformers: whether it batches continuously, the kinds of layers, the bytes that sectors are multiples of, and those of
  // a token in the smallest kind.
  bool is_paged() const { return is_paged_; }
  bool has_windows() const { return window_bytes_ > 0; }
  int kinds() const { return (full_bytes_ > 0 ? 1 : 0) + (window_bytes_ > 0 ? 1 : 0); }
  std::uint64_t sector_bytes() const;
  std::uint64_t least_token_bytes() const;

  // Returns the number of requests of a length that fit in a cache of `bytes`, with a fraction, which vLLM prints.
  double requests(std::uint64_t bytes, std::int64_t length) const;
  // Returns the longest length at most `most` of which `count` requests fit; 0: none.
  std::int64_t longest(std::uint64_t bytes, std::int64_t count, std::int64_t most) const;
  // Returns the tokens of the blocks of a group of layers, which vLLM printed up to 0.11.
  std::int64_t tokens_by_blocks(std::uint64_t bytes) const;

 private:
  void group_layers(const ServedModel& model, std::int64_t gpus, std::uint64_t element_bytes);
  double blocks_of(std::int64_t length) const;
  double bytes_of(std::int64_t length) const;
  std::int64_t kept(std::int64_t length) const { return window_ > 0 && window_ < length ? window_ : length; }
  // Returns the tokens of the pages of Transformers.
  std::int64_t in_pages(std::int64_t tokens) const;

  Engine engine_;
  std::int64_t in_flight_;
  bool is_paged_ = true;
  std::int64_t window_ = 0;         // of the layers with one
  std::uint64_t full_bytes_ = 0;    // of a token, in layers that keep all
  std::uint64_t window_bytes_ = 0;  // and in those with a window
  std::uint64_t state_bytes_ = 0;   // of a request, in all layers
  // vLLM's blocks.
  std::int64_t block_tokens_ = 16;
  std::uint64_t block_bytes_ = 0;
  std::int64_t full_groups_ = 0;
  std::int64_t window_groups_ = 0;
  std::int64_t state_groups_ = 0;
};

// The server that a question is about.
struct ServingQuestion {
  Engine engine = Engine::vllm;
  Card card;
  std::int64_t gpus = 1;                      // of tensor parallelism
  std::optional<std::int64_t> max_model_len;  // nullopt: the model's
  std::optional<double> utilization;          // of the GPU's memory, as the engine takes it
  std::string kv_cache_dtype = "auto";        // or "fp8"
  std::string quantization;                   // in place of the model's; "": that
  std::int64_t batch = 1;                     // requests of max_model_len at the same time
  std::optional<std::int64_t> max_num_seqs;   // nullopt: the engine's
  std::optional<std::size_t> kv_cache_bytes;  // nullopt: the rest of the engine's
};

// Memory of each GPU. Of an estimate the interval is wider than a point.
struct ServingPart {
  std::string key;  // "weights"
  std::uint64_t bytes = 0;
  std::uint64_t least = 0;
  std::uint64_t most = 0;
  std::string rule;  // in a short line
};

struct ServingFit {
  ServingQuestion question;
  std::string origin = "arithmetic";  // or "run"
  std::vector<ServingPart> parts;     // weights, activations, graphs, other
  std::uint64_t budget_bytes = 0;     // the engine's part of the GPU
  std::string budget_rule;
  std::uint64_t kv_bytes = 0;  // of the cache
  std::uint64_t kv_token_bytes = 0;
  std::uint64_t state_bytes = 0;  // of a request, whatever its length
  std::string kv_rule;
  std::int64_t max_model_len = 0;
  std::int64_t tokens = 0;            // that the cache holds, as the engine counts them
  std::int64_t tokens_by_blocks = 0;  // by vLLM's count up to 0.11; 0: no blocks
  double requests = 0;                // of max_model_len
  std::int64_t longest = 0;           // context with `batch` requests; 0: none
  bool fits = false;
  bool is_unsure = false;  // it changes within the intervals of the parts

  std::uint64_t taken_bytes() const;
};

// Returns the figures by arithmetic. Throws InvalidArgument where the question does not go with the model.
ServingFit fit_by_arithmetic(const ServedModel& model, const ServingQuestion& question);

// Returns whether the user's Python has the engine's package; false where there is no such Python.
bool is_installed(Engine engine);

// Returns the figures of a run of the engine that is installed, on simulated GPUs: simulator/python/cachalot_simulator/serve.py runs it
// with the model's config and dummy weights to the end of a warm-up, and reads its log. Of the cache that the engine made, what the
// log does not tell is by arithmetic. A run that ends because the memory is too little does not fit. Throws InvalidArgument as
// fit_by_arithmetic, and for a run that ended for another reason.
ServingFit fit_by_run(const ServedModel& model, const ServingQuestion& question);

inline constexpr const char* kUnsure = "?: may change: activations, graphs and libraries are estimates";
// Returns "qwen3 with vllm, by arithmetic, for each GPU on h100". `fits` has a server at least, as below.
std::string serving_title(const ServedModel& model, const std::vector<ServingFit>& fits);
// `varied`: the parameters of --vary, which are columns.
Section serving_report(const ServedModel& model, const std::vector<std::string>& varied,
                       const std::vector<ServingFit>& fits);
Json serving_json(const ServedModel& model, const std::vector<ServingFit>& fits);

}  // namespace cachalot::tools
