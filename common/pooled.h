// Objects that come and go with calls: memory is asked for only where there never were as many of them.
//
// Ownership: as of any object; the memory itself stays until the process ends. Threads: any. Errors: std::bad_alloc.
#pragma once

#include <cstddef>
#include <memory>
#include <memory_resource>
#include <utility>

namespace gpupool {

// Never destroyed: threads may still call while the program ends.
inline std::pmr::memory_resource& object_pool() {
    static auto& pool = *new std::pmr::synchronized_pool_resource;
    return pool;
}

template <class T, class... Arguments>
std::shared_ptr<T> make_shared_pooled(Arguments&&... arguments) {
    return std::allocate_shared<T>(std::pmr::polymorphic_allocator<T>(&object_pool()),
                                   std::forward<Arguments>(arguments)...);
}

// A base of what is made with `new`, or std::make_unique.
struct Pooled {
    static void* operator new(std::size_t bytes) { return object_pool().allocate(bytes); }
    static void operator delete(void* object, std::size_t bytes) { object_pool().deallocate(object, bytes); }
};

}  // namespace gpupool
