//! Tests of `error.rs`: the catalogue's reasons, which are stable, and small errors.

use super::*;

#[test]
fn every_refusal_has_its_reason() {
    let cases: [(MemoryError, Code, &str); 12] = [
        (
            MemoryError::Full {
                asked: 1,
                in_use: 2,
                longest: 0,
                limit: 4,
            },
            Code::ResourceExhausted,
            "ARENA_FULL",
        ),
        (
            MemoryError::Unfit { asked: 5, limit: 4 },
            Code::ResourceExhausted,
            "ARENA_UNFIT",
        ),
        (
            MemoryError::Unsealed { seals: 0 },
            Code::PermissionDenied,
            "DESCRIPTOR_UNSEALED",
        ),
        (
            MemoryError::Short {
                claimed: 2,
                size: 1,
            },
            Code::InvalidArgument,
            "DESCRIPTOR_SHORT",
        ),
        (
            MemoryError::Kind {
                kind: MemoryKind::Cuda,
            },
            Code::FailedPrecondition,
            "DESCRIPTOR_KIND",
        ),
        (
            MemoryError::Unpaged,
            Code::FailedPrecondition,
            "TENSOR_PAGES",
        ),
        (
            MemoryError::LeasesOut { capacity: 1 },
            Code::ResourceExhausted,
            "LEASES_OUT",
        ),
        (
            TensorError::Size {
                expected: 1,
                actual: 2,
            }
            .into(),
            Code::InvalidArgument,
            "TENSOR_SHAPE",
        ),
        (
            TensorError::Strings.into(),
            Code::InvalidArgument,
            "TENSOR_DTYPE",
        ),
        (
            MemoryError::Kernel,
            Code::FailedPrecondition,
            "KERNEL_UNSEALING",
        ),
        (
            MemoryError::system("memfd_create", Errno::MFILE),
            Code::ResourceExhausted,
            "SYSTEM_LIMIT",
        ),
        (
            MemoryError::system("mmap", Errno::INVAL),
            Code::Internal,
            "SYSTEM_CALL",
        ),
    ];
    for (error, code, reason) in cases {
        let status = Status::from(error);
        assert_eq!((status.code(), status.reason()), (code, reason));
        assert_eq!(status.message(), error.to_string());
    }
}

#[test]
fn a_full_arena_names_its_limit_and_the_setting() {
    let status = Status::from(MemoryError::Full {
        asked: 11,
        in_use: 22,
        longest: 3,
        limit: 44,
    });
    for part in ["11", "22", "of 3", "44", "arena_bytes"] {
        assert!(status.message().contains(part), "{} in {status}", part);
    }
}

const _: () = assert!(
    size_of::<MemoryError>() <= 40,
    "errors on the hot path are small"
);

#[test]
fn a_call_that_a_filter_forbids_is_told_with_what_to_do() {
    let said = |call, errno| MemoryError::system(call, errno).to_string();
    let forbidden = said("memfd_create", Errno::PERM);
    assert!(
        forbidden.contains("seccomp filter") && forbidden.contains("allow memfd_create"),
        "{forbidden}"
    );
    let short = said("memfd_create", Errno::MFILE);
    assert!(
        short.contains("`ulimit -n`") && !short.contains("seccomp"),
        "{short}"
    );
    let other = format!("memfd_create: errno {}", Errno::FBIG.raw_os_error());
    assert_eq!(said("memfd_create", Errno::FBIG), other);
}

#[test]
fn huge_pages_that_lack_are_told_with_what_to_do() {
    let error = MemoryError::HugePages {
        call: "mmap",
        errno: 12,
    };
    let said = error.to_string();
    assert!(
        said.contains("vm.nr_hugepages") && said.contains("huge_pages = \"auto\""),
        "{said}"
    );
}
