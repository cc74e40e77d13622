//! Certificates for servers with TLS.

use std::fs;

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};
use tempfile::TempDir;

/// A private authority, with a certificate for a server named `localhost`, one for a node with the
/// address 127.0.0.1, and one for a client.
///
/// They are PEM files: `ca.pem`, and `server`, `node` and `client` with `.pem` and `.key`. Dropping
/// this handle removes their directory.
pub struct Certificates(TempDir);

impl Certificates {
    /// Issues new certificates.
    ///
    /// # Panics
    ///
    /// If the files cannot be written.
    pub fn issue() -> Self {
        Certificates::issue_until(4096, 1, 1)
    }

    /// Issues new certificates, of which those of servers and of the client end with a day.
    ///
    /// # Panics
    ///
    /// If the files cannot be written.
    pub fn issue_until(year: i32, month: u8, day: u8) -> Self {
        let certificates = Certificates(TempDir::with_prefix("cf-").expect("create a directory"));
        let mut ca = CertificateParams::default();
        ca.distinguished_name.push(DnType::CommonName, "authority");
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let ca_key = KeyPair::generate().expect("a key");
        certificates.write(
            "ca.pem",
            &ca.self_signed(&ca_key)
                .expect("the authority's certificate")
                .pem(),
        );

        let authority = Issuer::new(ca, ca_key);
        for (name, host, usage) in [
            ("server", "localhost", ExtendedKeyUsagePurpose::ServerAuth),
            ("node", "127.0.0.1", ExtendedKeyUsagePurpose::ServerAuth),
            ("client", "client", ExtendedKeyUsagePurpose::ClientAuth),
        ] {
            let mut params = CertificateParams::new([host.to_owned()]).expect("a name");
            params.distinguished_name.push(DnType::CommonName, host);
            params.extended_key_usages = vec![usage];
            params.not_after = date_time_ymd(year, month, day);
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &authority).expect("a certificate");
            certificates.write(&format!("{name}.pem"), &certificate.pem());
            certificates.write(&format!("{name}.key"), &key.serialize_pem());
        }
        certificates
    }

    /// Returns the path of one of the files.
    pub fn file(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn write(&self, name: &str, pem: &str) {
        fs::write(self.file(name), pem).expect("write a certificate");
    }
}
