// CONTEXT_LOCAL_STORAGE, compared with measurements of the driver.
#include "protocol/export_tables/context_storage.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "protocol/export_tables/registry.h"
#include "tests/unit/export_tables/fake_view.h"

namespace gpupool::client::export_tables::test {
namespace {

CUcontext context(std::uintptr_t value) {
    return handle<CUcontext>(value << 8);
}
void* key(std::uintptr_t value) {
    return handle<void*>(value << 4);
}

struct Call {
    CUcontext context;
    void* key;
    void* value;
    bool operator==(const Call&) const = default;
};
std::vector<Call> destroyed;
void record(CUcontext context, void* key, void* value) {
    destroyed.push_back({context, key, value});
}

CUresult put(CUcontext context, void* key, void* value, StorageDestructor destructor) {
    return function<CUresult(CUcontext, void*, void*, StorageDestructor)>(kContextStorageId, 0)(context, key, value,
                                                                                                destructor);
}
CUresult remove(CUcontext context, void* key) {
    return function<CUresult(CUcontext, void*)>(kContextStorageId, 1)(context, key);
}
CUresult get(CUcontext context, void* key, void** value) {
    return function<CUresult(void**, CUcontext, void*)>(kContextStorageId, 2)(value, context, key);
}

class ContextStorageTest : public testing::Test {
  protected:
    ContextStorageTest() { destroyed.clear(); }
    FakeView client_;
    void* value_ = nullptr;
};

TEST_F(ContextStorageTest, KeysArePerContext) {
    EXPECT_EQ(put(context(1), key(1), key(11), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(put(context(2), key(1), key(12), nullptr), CUDA_SUCCESS);
    for (int round = 0; round < 2; ++round) {  // the second round is answered from the thread's cache
        EXPECT_EQ(get(context(1), key(1), &value_), CUDA_SUCCESS);
        EXPECT_EQ(value_, key(11));
        EXPECT_EQ(get(context(2), key(1), &value_), CUDA_SUCCESS);
        EXPECT_EQ(value_, key(12));
    }
    EXPECT_EQ(get(context(3), key(1), &value_), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(get(context(1), key(2), &value_), CUDA_ERROR_INVALID_HANDLE);
    context_ends(context(1));
    context_ends(context(2));
}

TEST_F(ContextStorageTest, DoesNotOverwrite) {
    EXPECT_EQ(put(context(1), key(1), key(11), record), CUDA_SUCCESS);
    EXPECT_EQ(put(context(1), key(1), key(12), record), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_SUCCESS);
    EXPECT_EQ(value_, key(11));
    context_ends(context(1));
}

TEST_F(ContextStorageTest, RemovesWithoutTheDestructor) {
    EXPECT_EQ(put(context(1), key(1), key(11), record), CUDA_SUCCESS);
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_SUCCESS);
    EXPECT_EQ(remove(context(1), key(1)), CUDA_SUCCESS);
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(remove(context(1), key(1)), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_TRUE(destroyed.empty());
    EXPECT_EQ(put(context(1), key(1), key(13), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_SUCCESS);
    EXPECT_EQ(value_, key(13));
    context_ends(context(1));
}

TEST_F(ContextStorageTest, CallsTheDestructorsWhenTheContextEnds) {
    EXPECT_EQ(put(context(1), key(1), key(11), record), CUDA_SUCCESS);
    EXPECT_EQ(put(context(1), key(2), key(12), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(put(context(1), key(3), key(13), record), CUDA_SUCCESS);
    EXPECT_EQ(put(context(2), key(1), key(21), record), CUDA_SUCCESS);
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_SUCCESS);
    context_ends(context(1));
    EXPECT_EQ(destroyed, (std::vector<Call>{{context(1), key(1), key(11)}, {context(1), key(3), key(13)}}));
    EXPECT_EQ(get(context(1), key(1), &value_), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(get(context(2), key(1), &value_), CUDA_SUCCESS);
    context_ends(context(2));
    EXPECT_EQ(destroyed.size(), 3u);
    context_ends(context(2));
    EXPECT_EQ(destroyed.size(), 3u);
}

TEST_F(ContextStorageTest, NullIsTheCurrentContext) {
    EXPECT_EQ(put(nullptr, key(1), key(11), nullptr), CUDA_ERROR_INVALID_CONTEXT);
    client_.current = context(5);
    EXPECT_EQ(put(nullptr, key(1), key(11), nullptr), CUDA_SUCCESS);
    EXPECT_EQ(get(context(5), key(1), &value_), CUDA_SUCCESS);
    client_.current = context(6);
    EXPECT_EQ(get(nullptr, key(1), &value_), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(get(nullptr, key(1), nullptr), CUDA_ERROR_INVALID_VALUE);
    context_ends(context(5));
}

TEST_F(ContextStorageTest, DestructorsMayUseTheStorage) {
    const StorageDestructor stubborn = [](CUcontext context, void* key, void* value) {
        void* found = nullptr;
        EXPECT_EQ(get(context, key, &found), CUDA_ERROR_INVALID_HANDLE);
        if (destroyed.size() < 100) {
            put(context, key, value, [](CUcontext c, void* k, void* v) { record(c, k, v); });
        }
        record(context, key, value);
    };
    EXPECT_EQ(put(context(1), key(1), key(11), stubborn), CUDA_SUCCESS);
    context_ends(context(1));
    EXPECT_EQ(destroyed.size(), 2u);
}

TEST_F(ContextStorageTest, OtherThreadsSeeChangesAtOnce) {
    std::atomic<int> turn{0};
    std::atomic<int> wrong{0};
    std::thread reader([&] {
        for (int i = 1; i <= 400; ++i) {
            while (turn.load() < 2 * i - 1) {
                std::this_thread::yield();
            }
            void* value = nullptr;
            if (get(context(1), key(1), &value) != CUDA_SUCCESS || value != key(static_cast<std::uintptr_t>(i))) {
                ++wrong;
            }
            turn.store(2 * i);
        }
    });
    for (int i = 1; i <= 400; ++i) {
        EXPECT_EQ(put(context(1), key(1), key(static_cast<std::uintptr_t>(i)), nullptr), CUDA_SUCCESS);
        turn.store(2 * i - 1);
        while (turn.load() < 2 * i) {
            std::this_thread::yield();
        }
        EXPECT_EQ(remove(context(1), key(1)), CUDA_SUCCESS);
    }
    reader.join();
    EXPECT_EQ(wrong.load(), 0);
}

TEST_F(ContextStorageTest, ForkedChildCanUseIt) {
    std::atomic<bool> stop{false};
    std::thread busy([&] {
        while (!stop) {
            put(context(9), key(1), key(1), nullptr);
            remove(context(9), key(1));
        }
    });
    for (int i = 0; i < 20; ++i) {
        const pid_t child = ::fork();
        if (child == 0) {
            ::alarm(10);  // a lock that the parent held at the fork would hang
            ::_exit(put(context(8), key(1), key(1), nullptr) == CUDA_SUCCESS ? 0 : 1);
        }
        int status = -1;
        EXPECT_EQ(::waitpid(child, &status, 0), child);
        EXPECT_EQ(status, 0);
    }
    stop = true;
    busy.join();
    context_ends(context(9));
}

}  // namespace
}  // namespace gpupool::client::export_tables::test
