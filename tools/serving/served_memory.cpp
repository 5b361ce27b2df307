#include "tools/serving/serving_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

constexpr std::array<std::string_view, 3> kEngines = {"vllm", "sglang", "transformers"};

std::int64_t divided_up(std::int64_t count, std::int64_t by) { return (count + by - 1) / by; }

constexpr std::uint64_t kPageTokens = 256;  // of Transformers

// vLLM's kernels for MXFP4 want the experts' matrices as multiples of 256 and 128.
double expert_padding(const ServedModel& model, Engine engine, std::int64_t gpus) {
  constexpr std::int64_t kHidden = 256;
  constexpr std::int64_t kInner = 128;
  if (engine != Engine::vllm || model.quantization.method != "mxfp4" || model.expert_inner == 0) return 1;
  const std::int64_t hidden = divided_up(model.hidden, kHidden) * kHidden;
  const std::int64_t inner = divided_up(divided_up(model.expert_inner, gpus), kInner) * kInner * gpus;
  return static_cast<double>(hidden * inner) / static_cast<double>(model.hidden * model.expert_inner);
}

double bytes_of_tensor(const ServedModel& model, const Tensor& tensor) {
  if (tensor.bytes) return static_cast<double>(*tensor.bytes);
  constexpr double kBitsOfByte = 8;
  const double bytes = model.quantization.covers(tensor) ? model.quantization.bits / kBitsOfByte
                                                         : static_cast<double>(model.dtype_bytes);
  return static_cast<double>(tensor.elements) * bytes;
}

// Engines that keep latent vectors multiply by kv_b_proj in two parts without quantization. vLLM has views of it where it is not quantized.
double latent_copy(const ServedModel& model, Engine engine, std::int64_t gpus) {
  double bytes = 0;
  for (const Tensor& tensor : model.tensors) {
    if (tensor.name.ends_with("kv_b_proj") && (engine != Engine::vllm || model.quantization.covers(tensor)))
      bytes += static_cast<double>(tensor.elements * model.dtype_bytes) / static_cast<double>(gpus);
  }
  return engine == Engine::transformers ? 0 : bytes;
}

std::uint64_t state_bytes_of(const ServedModel& model, const CacheLayer& layer, std::int64_t gpus) {
  return (layer.conv_elements * model.dtype_bytes + layer.state_elements * model.state_bytes) /
         static_cast<std::uint64_t>(gpus);
}

}  // namespace

std::string_view name_of(Engine engine) { return kEngines[static_cast<std::size_t>(engine)]; }

Engine engine_named(std::string_view name) {
  const auto* const found = std::ranges::find(kEngines, name);
  CACHALOT_REQUIRE(found != kEngines.end(), "--engine {:.40} is not one of vllm, sglang, transformers", name);
  return static_cast<Engine>(found - kEngines.begin());
}

std::uint64_t weight_bytes(const ServedModel& model, Engine engine, std::int64_t gpus) {
  const std::int64_t heads = std::max<std::int64_t>(1, model.heads);
  CACHALOT_REQUIRE(heads % gpus == 0 || model.heads == 0, "{}: {} attention heads cannot be divided among {} GPUs",
                   model.path, model.heads, gpus);
  const std::int64_t kv_heads = std::max<std::int64_t>(1, model.kv_heads);
  CACHALOT_REQUIRE(kv_heads % gpus == 0 || gpus % kv_heads == 0 || model.heads == 0,
                   "{}: {} key-value heads cannot be divided among {} GPUs", model.path, kv_heads, gpus);
  CACHALOT_REQUIRE(model.inner % gpus == 0, "{}: a feed-forward width of {} cannot be divided among {} GPUs",
                   model.path, model.inner, gpus);
  double all = latent_copy(model, engine, gpus);
  for (const Tensor& tensor : model.stored.empty() ? model.tensors : model.stored) {
    // Transformers computes sines and cosines anew.
    if (engine == Engine::transformers && tensor.name == "rotary") continue;
    std::int64_t parts = tensor.split == Split::replicated ? 1 : gpus;
    if (tensor.split == Split::by_kv_head) parts = std::min(gpus, std::max<std::int64_t>(1, model.kv_heads));
    if (engine == Engine::transformers && tensor.name.find("embed_tokens") != std::string::npos) parts = 1;
    const double padding = tensor.role == Role::expert ? expert_padding(model, engine, gpus) : 1;
    all += bytes_of_tensor(model, tensor) * padding / static_cast<double>(parts);
  }
  return static_cast<std::uint64_t>(all);
}

CachePool::CachePool(const ServedModel& model, Engine engine, std::int64_t gpus, std::uint64_t element_bytes,
                     std::int64_t in_flight)
    : engine_(engine), in_flight_(in_flight) {
  for (const CacheLayer& layer : model.layers) {
    const std::int64_t heads = divided_up(layer.heads, gpus);
    const std::uint64_t bytes = layer.token_elements * static_cast<std::uint64_t>(heads) * element_bytes;
    (layer.window > 0 ? window_bytes_ : full_bytes_) += bytes;
    window_ = std::max(window_, layer.window);
    state_bytes_ += state_bytes_of(model, layer, gpus);
    is_paged_ &= layer.heads > 0 && layer.state_elements == 0 && !layer.is_latent;
  }
  if (engine == Engine::vllm) group_layers(model, gpus, element_bytes);
}

// Cuts the layers of each kind into groups of as many layers as the rarest kind has, like vLLM's kv_cache_planning.py. A block has room for
// some tokens of one group, and where there are states for at least one of these.
void CachePool::group_layers(const ServedModel& model, std::int64_t gpus, std::uint64_t element_bytes) {
  std::array<std::int64_t, 3> counts{};  // with all tokens, with a window, with a state
  std::uint64_t token = 0;
  std::uint64_t state = 0;
  for (const CacheLayer& layer : model.layers) {
    if (layer.heads > 0) ++counts[layer.window > 0 ? 1 : 0];
    if (layer.state_elements > 0) ++counts[2];
    const auto heads = static_cast<std::uint64_t>(divided_up(layer.heads, gpus));
    token = std::max(token, layer.token_elements * heads * element_bytes);
    state = std::max(state, state_bytes_of(model, layer, gpus));
  }
  std::int64_t least = 0;
  const std::int64_t most = std::ranges::max(counts);
  for (const std::int64_t count : counts) least = count > 0 && (least == 0 || count < least) ? count : least;
  if (least == 0) return;
  const std::int64_t group = 2 * most < 3 * least ? most : least;
  full_groups_ = divided_up(counts[0], group);
  window_groups_ = divided_up(counts[1], group);
  state_groups_ = divided_up(counts[2], group);
  if (token > 0 && state > 0)
    block_tokens_ *= divided_up(static_cast<std::int64_t>(state), static_cast<std::int64_t>(token) * block_tokens_);
  const std::uint64_t page = token > 0 ? token * static_cast<std::uint64_t>(block_tokens_) : state;
  block_bytes_ = page * static_cast<std::uint64_t>(group);
}

double CachePool::blocks_of(std::int64_t length) const {
  // Beside keys and values, vLLM keeps a request's state of the last block as well, to find it by its prefix.
  const std::int64_t states = full_groups_ + window_groups_ > 0 ? 2 : 1;
  std::int64_t blocks = full_groups_ * divided_up(length, block_tokens_) + states * state_groups_;
  if (window_groups_ > 0)
    blocks += window_groups_ * (divided_up(std::min(window_ - 1 + in_flight_, length), block_tokens_) + 1);
  return static_cast<double>(blocks);
}

std::uint64_t CachePool::sector_bytes() const {
  constexpr std::uint64_t kAlignment = 128;
  const auto page = [](std::uint64_t bytes) { return std::max<std::uint64_t>(1, bytes * kPageTokens); };
  return std::lcm(std::lcm(page(full_bytes_), page(window_bytes_)), kAlignment);
}

std::uint64_t CachePool::least_token_bytes() const {
  return full_bytes_ > 0 && window_bytes_ > 0 ? std::min(full_bytes_, window_bytes_) : token_bytes();
}

std::int64_t CachePool::in_pages(std::int64_t tokens) const {
  const auto page = static_cast<std::int64_t>(kPageTokens);
  return is_paged() ? divided_up(tokens, page) * page : tokens;
}

double CachePool::bytes_of(std::int64_t length) const {
  return static_cast<double>(full_bytes_) * static_cast<double>(in_pages(length)) +
         static_cast<double>(window_bytes_) * static_cast<double>(in_pages(kept(length))) +
         static_cast<double>(state_bytes_);
}

double CachePool::requests(std::uint64_t bytes, std::int64_t length) const {
  const auto all = static_cast<double>(bytes);
  if (engine_ == Engine::vllm)
    return block_bytes_ == 0 ? 0 : std::floor(all / static_cast<double>(block_bytes_)) / blocks_of(length);
  if (engine_ == Engine::transformers) return all / std::max(1.0, bytes_of(length));
  // SGLang has 0.8 slots in layers with a window for each slot in the others, and divides memory between tokens and states as 1 to 0.9.
  constexpr double kWindowSlots = 0.8;
  constexpr double kStateShare = 0.9;
  const double share = full_bytes_ > 0 ? kWindowSlots : 1;
  const double token = static_cast<double>(full_bytes_) + share * static_cast<double>(window_bytes_);
  const double of_states = state_bytes_ == 0 ? 0 : token > 0 ? all * kStateShare / (1 + kStateShare) : all;
  const double by_tokens = token > 0 ? (all - of_states) / token / static_cast<double>(length) : INFINITY;
  return state_bytes_ > 0 ? std::min(by_tokens, of_states / static_cast<double>(state_bytes_)) : by_tokens;
}

std::int64_t CachePool::longest(std::uint64_t bytes, std::int64_t count, std::int64_t most) const {
  std::int64_t fits = 0;
  for (std::int64_t above = most + 1; above - fits > 1;) {
    const std::int64_t middle = fits + (above - fits) / 2;
    (requests(bytes, middle) >= static_cast<double>(count) ? fits : above) = middle;
  }
  return fits;
}

std::int64_t CachePool::tokens_by_blocks(std::uint64_t bytes) const {
  const std::int64_t groups = full_groups_ + window_groups_ + state_groups_;
  if (block_bytes_ == 0 || groups == 0) return 0;
  return static_cast<std::int64_t>(bytes / block_bytes_) / groups * block_tokens_;
}

}  // namespace cachalot::tools
