// A GPU's work: calls of streams, events and captures.
#include "cachalot/errors.h"
#include "device/cuda_completion_words.h"
#include "device/cuda_device.h"
#include "device/cuda_driver.h"
#include "device/cuda_relaxed_capture.h"

CACHALOT_BEGIN

namespace {

bool is_capturing(Stream stream, cuuint64_t& id) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver().stream_get_capture_info(stream, &status, &id);
  // The legacy default stream, while another captures.
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return false;
  check("cuStreamGetCaptureInfo", result);
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

// Null, cudaStreamLegacy and cudaStreamPerThread.
bool is_named_by_context(Stream stream) {
  return stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD;
}

// The stream's context where that is not the current one; null for a stream of the current context, and for one that is
// no more.
CUcontext other_context_of(Stream stream) {
  CUcontext current = nullptr;
  CUcontext owner = nullptr;
  check("cuCtxGetCurrent", driver().context_get_current(&current));
  if (driver().stream_get_context(stream, &owner) != CUDA_SUCCESS || owner == current) return nullptr;
  return owner;
}

template <typename Calls>
void in_context(CUcontext context, Calls&& calls) {
  check("cuCtxPushCurrent", driver().context_push(context));
  struct Pop {
    ~Pop() {
      CUcontext popped = nullptr;
      driver().context_pop(&popped);
    }
  } const pop;
  calls();
}

// A stream of the current context. What is queued on it is done after it was destroyed, too.
class TemporaryStream {
 public:
  TemporaryStream() { check("cuStreamCreate", driver().stream_create(&stream_, CU_STREAM_NON_BLOCKING)); }
  ~TemporaryStream() { driver().stream_destroy(stream_); }
  TemporaryStream(const TemporaryStream&) = delete;
  TemporaryStream& operator=(const TemporaryStream&) = delete;

  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

// An event of any context. Waits for it that are queued are kept after it was destroyed, too.
class TemporaryEvent {
 public:
  explicit TemporaryEvent(CUcontext context) : context_(context) {
    in_context(context_, [&] { check("cuEventCreate", driver().event_create(&event_, CU_EVENT_DISABLE_TIMING)); });
  }
  ~TemporaryEvent() { driver().event_destroy(event_); }
  TemporaryEvent(const TemporaryEvent&) = delete;
  TemporaryEvent& operator=(const TemporaryEvent&) = delete;

  CUevent get() const { return event_; }
  void record(Stream stream) const {
    in_context(context_, [&] { check("cuEventRecord", driver().event_record(event_, stream)); });
  }

 private:
  CUcontext context_;
  CUevent event_ = nullptr;
};

}  // namespace

// Addresses tell CUDA the kind.
void CudaDevice::copy(CopyKind /*kind*/, Address to, Address from, std::size_t bytes, Stream stream) {
  constexpr auto kCall = "cuMemcpyAsync";
  if (bytes == 0) check(kCall, CUDA_ERROR_INVALID_VALUE);  // CUDA may do nothing
  const CudaContext::Current current(context_);
  check(kCall, driver().copy_async(to, from, bytes, stream));
}

// A stream may be of another context of this device.
bool CudaDevice::has_stream(Stream stream) {
  if (is_named_by_context(stream)) return true;
  const CudaContext::Current current(context_);
  CUcontext owner = nullptr;
  check("cuStreamGetCtx", driver().stream_get_context(stream, &owner));
  CUdevice device = 0;
  in_context(owner, [&] { check("cuCtxGetDevice", driver().context_get_device(&device)); });
  return device == ordinal_;
}

Event CudaDevice::event_create() {
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  CUevent event = nullptr;
  check("cuEventCreate", driver().event_create(&event, CU_EVENT_DISABLE_TIMING));
  return event;
}

void CudaDevice::event_destroy(Event event) {
  const CudaContext::Current current(context_);
  check("cuEventDestroy", driver().event_destroy(event));
}

// The handles that name another stream in each context mean that of this one; a stream of the program tells without.
std::uint64_t CudaDevice::stream_id(Stream stream) {
  if (driver().stream_get_id == nullptr) return 0;
  unsigned long long id = 0;
  if (!is_named_by_context(stream) && driver().stream_get_id(stream, &id) == CUDA_SUCCESS) return id;
  const CudaContext::Current current(context_);
  check("cuStreamGetId", driver().stream_get_id(stream, &id));
  return id;
}

void CudaDevice::event_record(Event event, Stream stream) {
  constexpr auto kCall = "cuEventRecord";
  const CudaContext::Current current(context_);
  const CUresult result = driver().event_record(event, stream);
  // The stream is of another context, or is no more.
  if (result == CUDA_ERROR_INVALID_HANDLE) {
    if (CUcontext owner = other_context_of(stream)) return record_across_contexts(event, stream, owner);
  }
  check(kCall, result);
  cuuint64_t capture = 0;
  if (words_ && !is_capturing(stream, capture)) words_->advance(stream);
}

// CUDA records an event on streams of the event's own context alone. So a stream of this device waits for an event of
// the other context, and has our event behind that.
void CudaDevice::record_across_contexts(Event event, Stream stream, CUctx_st* owner) {
  cuuint64_t capture = 0;
  if (is_capturing(stream, capture)) check("cuEventRecord", CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  if (words_) words_->give_up(stream);  // its word would tell of the stream, before our event is done
  const RelaxedCapture relaxed;
  const TemporaryStream bridge;
  const TemporaryEvent theirs(owner);
  theirs.record(stream);
  check("cuStreamWaitEvent", driver().stream_wait_event(bridge.get(), theirs.get(), CU_EVENT_WAIT_DEFAULT));
  check("cuEventRecord", driver().event_record(event, bridge.get()));
}

// Events that were not recorded in a capture may be asked while others capture, in relaxed mode alone: CUDA else spoils
// the captures of all threads that capture in global mode.
bool CudaDevice::event_query(Event event) {
  const CudaContext::Current current(context_);
  const RelaxedCapture relaxed;
  const CUresult result = driver().event_query(event);
  if (result == CUDA_ERROR_NOT_READY) return false;
  check("cuEventQuery", result);
  return true;
}

void CudaDevice::event_synchronize(Event event) {
  const CudaContext::Current current(context_);
  check("cuEventSynchronize", driver().event_synchronize(event));
}

std::optional<std::uint64_t> CudaDevice::completion_hint(Stream stream) {
  return words_ ? words_->read(stream) : std::nullopt;
}

void CudaDevice::stream_wait(Stream stream, Event event) {
  const CudaContext::Current current(context_);
  check("cuStreamWaitEvent", driver().stream_wait_event(stream, event, CU_EVENT_WAIT_DEFAULT));
}

CaptureStatus CudaDevice::capture_status(Stream stream) {
  const CudaContext::Current current(context_);
  cuuint64_t id = 0;
  const bool capturing = is_capturing(stream, id);
  return {.capturing = capturing, .id = capturing ? id : 0};
}

void CudaDevice::synchronize() {
  const CudaContext::Current current(context_);
  check("cuCtxSynchronize", driver().context_synchronize());
}

CACHALOT_END
