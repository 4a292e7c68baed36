#include "server/worker/memory/code_memory.h"

#include "server/worker/memory/memory_account.h"
#include "server/worker/session/objects.h"

namespace gpupool::worker {

void CodeMemory::add(std::uint64_t handle, ImageMemory memory, const ContextState* context) {
    forget(handle);
    Code& code = code_[handle];
    code.memory = std::move(memory);
    if (context != nullptr) {
        code.loaded[&context->owner()] = {context->device, code.memory.data_bytes, {}};
    }
}

void CodeMemory::add_kernel(std::uint64_t kernel, std::uint64_t library, std::string name) {
    if (const auto code = code_.find(library); code != code_.end()) {
        code->second.kernels.insert(kernel);
        kernels_[kernel] = {library, std::move(name)};
    }
}

CodeMemory::Use CodeMemory::first_use(std::uint64_t handle, const ContextState& context,
                                      const std::string& kernel) const {
    const auto known = kernels_.find(handle);
    Use use{known == kernels_.end() ? handle : known->second.first,
            known == kernels_.end() ? kernel : known->second.second};
    const auto code = code_.find(use.owner);
    if (code == code_.end()) {
        return {};
    }
    const auto loaded = code->second.loaded.find(&context.owner());
    const bool has_data = loaded != code->second.loaded.end();
    use.bytes = has_data ? 0 : code->second.memory.data_bytes;
    if (!use.kernel.empty() && !(has_data && loaded->second.kernels.contains(use.kernel))) {
        const auto bytes = code->second.memory.code_bytes.find(use.kernel);
        use.bytes += bytes == code->second.memory.code_bytes.end() ? 0 : bytes->second;
    }
    if (!use.kernel.empty()) {
        const auto there = runtimes_.find(&context.owner());
        const Runtime has = there == runtimes_.end() ? Runtime{} : there->second.second;
        const ImageMemory& memory = code->second.memory;
        use.runtime.prints_bytes = memory.prints && has.prints_bytes == 0 ? runtime_.prints_bytes : 0;
        use.runtime.allocates_bytes = memory.allocates && has.allocates_bytes == 0 ? runtime_.allocates_bytes : 0;
        use.bytes += use.runtime.prints_bytes + use.runtime.allocates_bytes;
    }
    return use;
}

void CodeMemory::note(const Use& use, const ContextState& context) {
    const auto code = code_.find(use.owner);
    if (code == code_.end()) {
        return;
    }
    Loaded& loaded = code->second.loaded[&context.owner()];
    loaded.device = context.device;
    const std::uint64_t runtime_bytes = use.runtime.prints_bytes + use.runtime.allocates_bytes;
    loaded.bytes += use.bytes - runtime_bytes;
    if (runtime_bytes != 0) {
        auto& [device, has] = runtimes_[&context.owner()];
        device = context.device;
        has.prints_bytes += use.runtime.prints_bytes;
        has.allocates_bytes += use.runtime.allocates_bytes;
    }
    if (!use.kernel.empty()) {
        loaded.kernels.insert(use.kernel);
    }
}

bool CodeMemory::forget(std::uint64_t handle) {
    const auto code = code_.find(handle);
    if (code == code_.end()) {
        return false;
    }
    for (const auto& [context, loaded] : code->second.loaded) {
        account_.release(loaded.device, loaded.bytes);
    }
    for (const std::uint64_t kernel : code->second.kernels) {
        kernels_.erase(kernel);
    }
    code_.erase(code);
    return true;
}

void CodeMemory::forget(const ContextState& context) {
    if (const auto runtime = runtimes_.extract(&context)) {
        const auto& [device, has] = runtime.mapped();
        account_.release(device, has.prints_bytes + has.allocates_bytes);
    }
    for (auto& [handle, code] : code_) {
        if (const auto loaded = code.loaded.extract(&context)) {
            account_.release(loaded.mapped().device, loaded.mapped().bytes);
        }
    }
}

}  // namespace gpupool::worker
