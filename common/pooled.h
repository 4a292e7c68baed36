// Short-lived objects of the call path, from a process-wide pool. The pool allocates memory only when more of them
// exist at once than ever before.
//
// Ownership: as of any object; the pool keeps the memory until the process ends. Threads: any. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

namespace gpupool {

// Never destroyed: threads may still make calls while the process exits.
inline std::pmr::memory_resource& object_pool() {
    static auto& pool = *new std::pmr::synchronized_pool_resource;
    return pool;
}

template <class T, class... Arguments>
std::shared_ptr<T> make_shared_pooled(Arguments&&... arguments) {
    return std::allocate_shared<T>(std::pmr::polymorphic_allocator<T>(&object_pool()),
                                   std::forward<Arguments>(arguments)...);
}

// Base class of objects that are created with `new` or std::make_unique.
struct Pooled {
    static void* operator new(std::size_t bytes) { return object_pool().allocate(bytes); }
    static void operator delete(void* object, std::size_t bytes) { object_pool().deallocate(object, bytes); }
};

}  // namespace gpupool
