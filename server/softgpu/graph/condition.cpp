#include "server/softgpu/graph/condition.h"

#include "server/softgpu/exec/address_space.h"

namespace gpupool::softgpu {
namespace {

constexpr std::uint64_t kBytes = 16;  // apart, so that no two handles are in one word of a kernel's access

}  // namespace

GraphCondition::GraphCondition(unsigned default_value, unsigned flags)
    : word_(new std::uint32_t[kBytes / sizeof(std::uint32_t)]{}),
      default_value_(default_value),
      assigns_((flags & CU_GRAPH_COND_ASSIGN_DEFAULT) != 0) {
    AddressSpace::instance().add(handle(), kBytes);
}

GraphCondition::~GraphCondition() {
    AddressSpace::instance().remove(handle(), kBytes);
    delete[] word_;
}

void GraphCondition::assign_default() noexcept {
    if (assigns_) {
        __atomic_store_n(word_, default_value_, __ATOMIC_RELEASE);
    }
}

}  // namespace gpupool::softgpu
