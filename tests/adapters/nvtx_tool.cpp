// NVTX finds the two pointers at the end, which other files of the program have as weak symbols.
#define NVTX_STATIC_INJECTION_IMPL
#define NVTX_NO_IMPL
#include "tests/adapters/nvtx_tool.h"

#include <gtest/gtest.h>
#include <nvtx3/nvToolsExt.h>
#include <nvtx3/nvToolsExtMem.h>

#include <cstdint>
#include <utility>

namespace cachalot {
namespace {

// Writes down what NVTX tells, in order. Handles are numbers.
struct Tool {
  std::vector<std::string> heard;
  std::uintptr_t next_handle = 1;
  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(next_handle++);
  }
};

Tool& tool() {
  static Tool only;
  return only;
}

// CUB has ranges of its own in this program, whose texts are registered strings.
std::string text(const nvtxEventAttributes_t& event) {
  if (event.messageType != NVTX_MESSAGE_TYPE_ASCII || event.message.ascii == nullptr)
    return "a range of another library";
  return std::string(event.message.ascii) + " " + std::to_string(event.payload.ullValue);
}
std::string text(const void* handle) { return "#" + std::to_string(reinterpret_cast<std::uintptr_t>(handle)); }

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  tool().heard.push_back("domain " + std::string(name));
  return reinterpret_cast<nvtxDomainHandle_t>(&tool());
}
void NVTX_API destroy_domain(nvtxDomainHandle_t) { tool().heard.push_back("end of domain"); }
int NVTX_API push(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) {
  tool().heard.push_back("+" + text(*event));
  return 0;
}
int NVTX_API pop(nvtxDomainHandle_t) {
  tool().heard.push_back("-");
  return 0;
}
void NVTX_API mark(nvtxDomainHandle_t, const nvtxEventAttributes_t* event) { tool().heard.push_back(text(*event)); }

nvtxMemHeapHandle_t NVTX_API register_heap(nvtxDomainHandle_t, const nvtxMemHeapDesc_t* heap) {
  EXPECT_EQ(heap->structSize, sizeof(*heap));
  EXPECT_EQ(heap->usage, static_cast<std::uint32_t>(NVTX_MEM_HEAP_USAGE_TYPE_SUB_ALLOCATOR));
  const auto* const range = static_cast<const nvtxMemVirtualRangeDesc_t*>(heap->typeSpecificDesc);
  auto* const handle = tool().new_handle<nvtxMemHeapHandle_t>();
  tool().heard.push_back("heap " + text(handle) + " of " + std::to_string(range->size) + ", " + heap->message.ascii);
  return handle;
}
void NVTX_API unregister_heap(nvtxDomainHandle_t, nvtxMemHeapHandle_t heap) {
  tool().heard.push_back("end of heap " + text(heap));
}
void NVTX_API register_regions(nvtxDomainHandle_t, const nvtxMemRegionsRegisterBatch_t* batch) {
  ASSERT_EQ(batch->regionCount, 1u);
  EXPECT_EQ(batch->structSize, sizeof(*batch));
  const auto* const range = static_cast<const nvtxMemVirtualRangeDesc_t*>(batch->regionDescElements);
  batch->regionHandleElementsOut[0] = tool().new_handle<nvtxMemRegionHandle_t>();
  tool().heard.push_back("region " + text(batch->regionHandleElementsOut[0]) + " of " + std::to_string(range->size) +
                         " in heap " + text(batch->heap));
}
void NVTX_API unregister_regions(nvtxDomainHandle_t, const nvtxMemRegionsUnregisterBatch_t* batch) {
  ASSERT_EQ(batch->refCount, 1u);
  EXPECT_EQ(batch->refType, static_cast<std::uint32_t>(NVTX_MEM_REGION_REF_TYPE_HANDLE));
  tool().heard.push_back("end of region " + text(batch->refElements[0].handle));
}
void NVTX_API name_regions(nvtxDomainHandle_t, const nvtxMemRegionsNameBatch_t* batch) {
  ASSERT_EQ(batch->regionCount, 1u);
  tool().heard.push_back("region " + text(batch->regionElements[0].region.handle) + " is " +
                         batch->regionElements[0].name.ascii);
}

template <typename Function>
void attach(NvtxFunctionTable table, int callback, Function function) {
  *table[callback] = reinterpret_cast<NvtxFunctionPointer>(function);
}

int NVTX_API start_tool(NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks = static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned int size = 0;
  if (callbacks == nullptr || callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  attach(table, NVTX_CBID_CORE2_DomainCreateA, create_domain);
  attach(table, NVTX_CBID_CORE2_DomainDestroy, destroy_domain);
  attach(table, NVTX_CBID_CORE2_DomainRangePushEx, push);
  attach(table, NVTX_CBID_CORE2_DomainRangePop, pop);
  attach(table, NVTX_CBID_CORE2_DomainMarkEx, mark);
  return 1;
}

int NVTX_API start_memory_tool(nvtxExtModuleInfo_t* module) {
  if (module->moduleId != NVTX_EXT_MODULEID_MEM) return 0;
  intptr_t* const slots = module->segments[0].functionSlots;
  slots[NVTX3EXT_CBID_nvtxMemHeapRegister] = reinterpret_cast<intptr_t>(register_heap);
  slots[NVTX3EXT_CBID_nvtxMemHeapUnregister] = reinterpret_cast<intptr_t>(unregister_heap);
  slots[NVTX3EXT_CBID_nvtxMemRegionsRegister] = reinterpret_cast<intptr_t>(register_regions);
  slots[NVTX3EXT_CBID_nvtxMemRegionsUnregister] = reinterpret_cast<intptr_t>(unregister_regions);
  slots[NVTX3EXT_CBID_nvtxMemRegionsName] = reinterpret_cast<intptr_t>(name_regions);
  return 1;
}

}  // namespace

std::vector<std::string> take_heard() { return std::exchange(tool().heard, {}); }

void forget_handles() { tool().next_handle = 1; }

}  // namespace cachalot

extern "C" {
NvtxInitializeInjectionNvtxFunc_t InitializeInjectionNvtx2_fnptr = cachalot::start_tool;
NvtxExtInitializeInjectionFunc_t InitializeInjectionNvtxExtension_fnptr = cachalot::start_memory_tool;
}
