//! Proofs prove one secret, one role, one connection; seals one direction and one order.

use super::*;

fn secret(text: &[u8]) -> Secret {
    Secret::new(text).expect("long enough")
}

const ONE: &[u8] = b"0123456789abcdef0123456789abcdef";

const GOLDEN: [&str; 4] = [
    "629bd57e26dccb9cb31ac7d77cd78738db779cbb236e2284eaad55fd540c1c58",
    "fc5ea043cdf2b54463ebec4c3833d318366c1e893c79bf4c2f6385e38436a81a",
    "53449592a7c302eb0d6885bf30d26a1f58ddcc0dcc4f154620d2b0f49c749291",
    "94d8e6e06b1e379e3d71f1a3430a7712b3db23254242348b7b25bf50c35f14d8",
];

fn challenge(byte: u8) -> Challenge {
    Challenge {
        has_secret: true,
        waives: false,
        nonce: [byte; 32],
    }
}

fn transcript(binding: u8, dialler: u8, acceptor: u8) -> Transcript {
    Transcript::new(&[binding; 32], &challenge(dialler), &challenge(acceptor))
}

/// Golden bytes, made with another implementation: `hmac.new(secret, label + binding + nonces, "sha256")`.
#[test]
fn proofs_and_seals_have_these_bytes() {
    let secret = secret(ONE);
    let transcript = transcript(0, 1, 2);
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|byte| format!("{byte:02x}")).collect() };
    assert_eq!(hex(&secret.prove(Role::Dialler, &transcript)), GOLDEN[0]);
    assert_eq!(hex(&secret.prove(Role::Acceptor, &transcript)), GOLDEN[1]);
    let session = secret.session(&transcript);
    assert_eq!(hex(&session.sign_ticket(b"ticket", &[])), GOLDEN[2]);
    let mut seal = session.seal(Role::Dialler);
    let _ = seal.seal(b"first");
    assert_eq!(hex(&seal.seal(b"second")), GOLDEN[3]);
    let mut bytes = [0; MESSAGE];
    bytes[0] = 1;
    bytes[8..].fill(5);
    assert_eq!(challenge(5).emit(), bytes);
    assert_eq!(emit_answer(Some(&[5; 32])), bytes);
    assert_eq!(emit_answer(None), [0; MESSAGE]);
}

#[test]
fn a_proof_is_of_one_secret_one_role_and_one_connection() {
    let ours = secret(ONE);
    let proof = ours.prove(Role::Dialler, &transcript(0, 1, 2));
    assert!(ours.is_proved(Role::Dialler, &transcript(0, 1, 2), &proof));
    assert!(!ours.is_proved(Role::Acceptor, &transcript(0, 1, 2), &proof));
    assert!(!secret(b"another secret of this length").is_proved(
        Role::Dialler,
        &transcript(0, 1, 2),
        &proof
    ));
    for other in [
        transcript(9, 1, 2),
        transcript(0, 9, 2),
        transcript(0, 1, 9),
    ] {
        assert!(!ours.is_proved(Role::Dialler, &other, &proof));
    }
    let mut changed = proof;
    changed[31] ^= 1;
    assert!(!ours.is_proved(Role::Dialler, &transcript(0, 1, 2), &changed));
}

#[test]
fn seals_keep_order_and_direction() {
    let session = secret(ONE).session(&transcript(0, 1, 2));
    let (mut out, mut back) = (session.seal(Role::Dialler), session.seal(Role::Acceptor));
    let (first, second) = (out.seal(b"message"), out.seal(b"message"));
    assert_ne!(first, second);
    let mut reader = session.seal(Role::Dialler);
    assert!(reader.is_sealed(b"message", &first));
    assert!(reader.is_sealed(b"message", &second));
    assert!(!reader.is_sealed(b"message", &second), "said again");
    assert!(
        !session.seal(Role::Dialler).is_sealed(b"message", &second),
        "one was dropped"
    );
    assert!(!session.seal(Role::Dialler).is_sealed(b"massage", &first));
    assert!(
        !session
            .seal(Role::Dialler)
            .is_sealed(b"message", &back.seal(b"message"))
    );
}

#[test]
fn a_secret_is_neither_short_nor_shown() {
    for bytes in [&b""[..], b"short", b"  fifteen bytes.   \n", &[b'x'; 4097]] {
        let status = Secret::new(bytes).expect_err("unfit");
        assert_eq!(status.reason(), "SECRET_UNFIT");
    }
    let shown = format!("{:?}", secret(ONE));
    assert!(!shown.contains("0123"), "{shown}");
    let (plain, with_end) = (secret(ONE), secret(&[ONE, b"\n"].concat()));
    let transcript = transcript(0, 1, 2);
    let proof = plain.prove(Role::Dialler, &transcript);
    assert!(
        with_end.is_proved(Role::Dialler, &transcript, &proof),
        "a line's end is no secret"
    );
}

#[test]
fn what_is_no_challenge_is_none() {
    for at in 0..8 {
        let mut bytes = challenge(3).emit();
        bytes[at] = 2;
        assert_eq!(Challenge::read(&bytes), None);
    }
    assert_eq!(Challenge::read(&challenge(3).emit()), Some(challenge(3)));
}
